/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/commands.h"

const struct cli_command *const cli_commands[] = {&cli_run,    &cli_image,   &cli_serve, &cli_trigger, &cli_functions,
                                                  &cli_doctor, &cli_version, &cli_help,  NULL};
