/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a configuration file. */
#include "daemon/config.h"

#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct config config;
    struct err e = ERR_INIT;
    config_init(&config);
    if (config_parse(&config, "fuzz", (const char *)data, size, &e))
        err_clear(&e);
    config_done(&config);
    return 0;
}
