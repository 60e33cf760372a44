/* SPDX-License-Identifier: Apache-2.0 */
/* The commands, one per file; commands.c puts them into the table. */
#pragma once

#include "cli/command.h"

extern const struct cli_command cli_doctor;
extern const struct cli_command cli_functions;
extern const struct cli_command cli_help;
extern const struct cli_command cli_image;
extern const struct cli_command cli_run;
extern const struct cli_command cli_serve;
extern const struct cli_command cli_trigger;
extern const struct cli_command cli_version;
