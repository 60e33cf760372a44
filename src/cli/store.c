/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/store.h"

#include "base/check.h"
#include "base/cleanup.h"
#include "base/limits.h"
#include "base/text.h"

#include <limits.h>
#include <stdio.h>
#include <unistd.h>

static volatile sig_atomic_t cancelled;

struct store *cli_store_open(const char *config_path, struct config *ret_config, struct err *e)
{
    config_init(ret_config);
    if (config_load(ret_config, config_path, e))
        return NULL;
    struct store *store = store_open(NULL, e);
    if (!store)
        return NULL;
    auto_free struct image_custom *customs = xcalloc(ret_config->custom_images_len, sizeof *customs);
    for (size_t i = 0; i < ret_config->custom_images_len; i++)
        customs[i] =
            (struct image_custom){.name = ret_config->custom_images[i].name, .source = ret_config->custom_images[i].source};
    store_configure(store, customs, ret_config->custom_images_len, ret_config->image_store_max_gb * GIB);
    if (ret_config->kernel)
        store_use_kernel(store, ret_config->kernel, ret_config->kernel_modules);
    return store;
}

void cli_store_close(struct store *store)
{
    if (!store)
        return;
    const struct strv *notes = store_notes(store);
    for (size_t i = 0; i < notes->len; i++)
        fprintf(stderr, "note: %s\n", notes->items[i]);
    store_close(store);
}

static void on_cancel(int number)
{
    cancelled = number;
}

static void set_handlers(void (*handler)(int))
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = handler}; /* without SA_RESTART: a wait ends */
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        CHECK(sigaction(numbers[i], &action, NULL) == 0);
}

const volatile sig_atomic_t *cli_cancel_watch(void)
{
    set_handlers(on_cancel);
    return &cancelled;
}

void cli_cancel_unwatch(void)
{
    set_handlers(SIG_DFL);
}

int cli_cancel_check(struct err *e)
{
    return cancelled ? err_set(e, ERR_INTERRUPTED, "interrupted") : 0;
}

int cli_cancel_status(const struct err *e, int otherwise)
{
    return e->code == ERR_INTERRUPTED && cancelled ? 128 + cancelled : otherwise;
}

char *cli_image_name(const char *name)
{
    bool has_path = text_has_prefix(name, "tar:") || text_has_prefix(name, "dir:");
    char folder[PATH_MAX];
    if (!has_path || !name[4] || name[4] == '/' || !getcwd(folder, sizeof folder))
        return xstrdup(name);
    return xasprintf("%.4s%s/%s", name, folder, name + 4);
}
