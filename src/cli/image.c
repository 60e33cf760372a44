/* SPDX-License-Identifier: Apache-2.0 */
/* `iii-sandbox image`: the store for people. Blocking throughout; a signal only sets a flag, which ends a preparation
 * without leftovers. */
#include "image/image.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/limits.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/store.h"
#include "cli/terminal.h"

#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <string.h>
#include <time.h>

struct image_options {
    bool json, fresh, all;
    uint64_t max_gb; /* 0: what the configuration says */
    const char *config;
};

/* A line per stage where there is no terminal to draw on. */
static void on_stage(void *context, const char *stage, uint64_t done, uint64_t total)
{
    char *last = context;
    if (isatty(STDERR_FILENO)) {
        terminal_progress(NULL, stage, done, total);
    } else if (strncmp(last, stage, 63) != 0) {
        snprintf(last, 64, "%s", stage);
        fprintf(stderr, "%s\n", stage);
    }
}

static void print_json(json_t *value)
{
    auto_free char *text = json_dumps(value, JSON_INDENT(2) | JSON_SORT_KEYS);
    CHECK(text);
    puts(text);
    json_decref(value);
}

/* A name may hold any byte; JSON and terminals get what is UTF-8 of it. */
static json_t *text_json(const char *text)
{
    json_t *value = json_string(text);
    return value ? value : json_string("(not UTF-8)");
}

static json_t *texts_json(const struct strv *list)
{
    json_t *array = json_array();
    for (size_t i = 0; i < list->len; i++)
        json_array_append_new(array, text_json(list->items[i]));
    return array;
}

static void print_time(uint64_t secs, char text[32])
{
    time_t when = (time_t)secs;
    struct tm parts;
    if (!secs || !gmtime_r(&when, &parts) || !strftime(text, 32, "%Y-%m-%d %H:%M", &parts))
        snprintf(text, 32, "-");
}

static json_t *info_json(const struct image_info *info)
{
    json_t *value = json_pack("{s:s, s:I, s:I, s:I, s:I, s:b}", "digest", info->digest, "bytes", (json_int_t)info->bytes,
                              "disk_bytes", (json_int_t)info->disk_bytes, "made", (json_int_t)info->made_secs, "used",
                              (json_int_t)info->used_secs, "in_use", info->in_use);
    CHECK(value);
    json_object_set_new(value, "name", text_json(info->name));
    json_object_set_new(value, "source", text_json(info->source));
    return value;
}

static int pull(struct store *store, const struct image_options *options, const char *name, struct err *e)
{
    char stage[64] = "";
    struct image_progress progress = {.context = stage, .on_stage = on_stage, .cancelled = cli_cancel_watch()};
    struct image image;
    bool prepared;
    int failed = image_pull(store, name, options->fresh, &progress, &image, &prepared, e);
    terminal_progress_end();
    if (failed)
        return -1;
    if (options->json)
        print_json(json_pack("{s:o, s:s, s:I, s:b}", "name", text_json(image.name), "digest", image.digest, "bytes",
                             (json_int_t)image.bytes, "prepared", prepared));
    else
        printf("%s  %.16s  %" PRIu64 " MiB%s\n", image.name, image.digest, image.bytes / MIB, prepared ? "" : "  (was there)");
    image_done(&image);
    return 0;
}

static int list(struct store *store, const struct image_options *options, const char *name, struct err *e)
{
    struct image_list images;
    (void)name;
    if (image_list(store, &images, e))
        return -1;
    if (options->json) {
        json_t *array = json_array();
        for (size_t i = 0; i < images.len; i++)
            json_array_append_new(array, info_json(&images.items[i]));
        print_json(array);
    } else {
        printf("%-24s %-16s %9s  %-16s %s\n", "NAME", "DIGEST", "ON DISK", "LAST USED", "IN USE");
        for (size_t i = 0; i < images.len; i++) {
            const struct image_info *info = &images.items[i];
            char used[32];
            print_time(info->used_secs, used);
            printf("%-24s %.16s %5" PRIu64 " MiB  %-16s %s\n", info->name, info->digest, info->disk_bytes / MIB, used,
                   info->in_use ? "yes" : "no");
        }
    }
    image_list_done(&images);
    return 0;
}

static void print_info(const struct image_info *info)
{
    char made[32], used[32];
    print_time(info->made_secs, made);
    print_time(info->used_secs, used);
    printf("name       %s\nsource     %s\ndigest     %s\nlength     %" PRIu64 " bytes\non disk    %" PRIu64
           " bytes\nmade       %s\nlast used  %s\nin use     %s\n",
           info->name, info->source, info->digest, info->bytes, info->disk_bytes, made, used, info->in_use ? "yes" : "no");
}

static int show(struct store *store, const struct image_options *options, const char *name, struct err *e)
{
    struct image_list images;
    const struct image_info *found = NULL;
    if (image_list(store, &images, e))
        return -1;
    for (size_t i = 0; i < images.len; i++)
        if (!strcmp(images.items[i].name, name))
            found = &images.items[i];
    if (found && options->json)
        print_json(info_json(found));
    else if (found)
        print_info(found);
    int result = found ? 0 : err_set(e, ERR_IMAGE_ABSENT, "the image '%s' is not prepared here", name);
    image_list_done(&images);
    return result;
}

static int remove_one(struct store *store, const struct image_options *options, const char *name, struct err *e)
{
    (void)options;
    return image_remove(store, name, e);
}

static int verify(struct store *store, const struct image_options *options, const char *name, struct err *e)
{
    char stage[64] = "";
    struct image_progress progress = {.context = stage, .on_stage = on_stage, .cancelled = cli_cancel_watch()};
    auto_strv findings = {0};
    (void)name;
    int failed = store_verify(store, &progress, &findings, e);
    terminal_progress_end();
    if (failed)
        return -1;
    if (options->json)
        print_json(json_pack("{s:o}", "findings", texts_json(&findings)));
    for (size_t i = 0; !options->json && i < findings.len; i++)
        puts(findings.items[i]);
    if (!options->json && !findings.len)
        puts("all is well");
    return findings.len ? 1 : 0;
}

static int prune(struct store *store, const struct image_options *options, const char *name, struct err *e)
{
    auto_strv removed = {0};
    uint64_t freed;
    (void)name;
    if (store_prune(store, options->all ? 0 : options->max_gb * GIB, &removed, &freed, e))
        return -1;
    if (options->json) {
        print_json(json_pack("{s:o, s:I}", "removed", texts_json(&removed), "freed_bytes", (json_int_t)freed));
        return 0;
    }
    for (size_t i = 0; i < removed.len; i++)
        puts(removed.items[i]);
    printf("%" PRIu64 " MiB freed\n", freed / MIB);
    return 0;
}

/* What follows `image`. run: 0, 1 (told already, exit status 1), -1 with an error. */
static const struct verb {
    const char *name;
    bool names_image;
    int (*run)(struct store *store, const struct image_options *options, const char *name, struct err *e);
} verbs[] = {
    {"pull", true, pull},     {"ls", false, list},       {"info", true, show},
    {"rm", true, remove_one}, {"verify", false, verify}, {"prune", false, prune},
};

static const struct verb *find_verb(const struct cli_words *words, struct err *e)
{
    for (size_t i = 0; words->words_len && i < sizeof verbs / sizeof *verbs; i++) {
        const struct verb *verb = &verbs[i];
        if (strcmp(verb->name, words->words[0]) != 0)
            continue;
        if (verb->names_image ? words->words_len >= 2 : words->words_len == 1)
            return verb;
        err_set(e, ERR_USAGE, verb->names_image ? "image %s needs the name of an image" : "image %s takes no name", verb->name);
        return NULL;
    }
    err_set(e, ERR_USAGE, "image needs one of pull, ls, info, rm, verify, prune");
    return NULL;
}

/* A path as the user's shell sees it becomes absolute. */
static char *full_name(const char *name)
{
    bool has_path = text_has_prefix(name, "tar:") || text_has_prefix(name, "dir:");
    char folder[PATH_MAX];
    if (!has_path || !name[4] || name[4] == '/' || !getcwd(folder, sizeof folder))
        return xstrdup(name);
    return xasprintf("%.4s%s/%s", name, folder, name + 4);
}

static int run_verb(const struct verb *verb, struct image_options *options, const struct cli_words *words, struct err *e)
{
    struct config config;
    struct store *store = cli_store_open(options->config, &config, e);
    int result = store ? 0 : -1;
    if (!options->max_gb)
        options->max_gb = config.image_store_max_gb;
    if (store && !verb->names_image)
        result = verb->run(store, options, NULL, e);
    for (size_t i = 1; verb->names_image && !result && i < words->words_len; i++) {
        auto_free char *name = full_name(words->words[i]);
        result = verb->run(store, options, name, e);
    }
    cli_store_close(store);
    config_done(&config);
    return result;
}

static int run(const struct cli_command *command, int argc, char **argv)
{
    struct err e = ERR_INIT;
    struct cli_words words;
    struct image_options options = {0};
    const struct verb *verb = NULL;
    if (!cli_parse(command, argc, argv, &options, &words, &e))
        verb = find_verb(&words, &e);
    int result = verb ? run_verb(verb, &options, &words, &e) : -1;
    if (result < 0)
        return cli_fail(command, &e, cli_cancel_status(&e, CLI_FAILED));
    return result ? CLI_FAILED : CLI_OK;
}

static const struct cli_option options[] = {
    {"json", 0, CLI_FLAG, offsetof(struct image_options, json), 0, 0, NULL, "print JSON"},
    {"fresh", 0, CLI_FLAG, offsetof(struct image_options, fresh), 0, 0, NULL, "pull: make it anew even when it is there"},
    {"all", 0, CLI_FLAG, offsetof(struct image_options, all), 0, 0, NULL, "prune: remove every image that is not in use"},
    {"max-gb", 0, CLI_NUMBER, offsetof(struct image_options, max_gb), 1, 1000000, "GB",
     "prune: keep at most this much, the most recently used first (image_store_max_gb)"},
    {"config", 0, CLI_TEXT, offsetof(struct image_options, config), 0, 0, "FILE", "the configuration to use"},
    {0},
};

const struct cli_command cli_image = {
    .name = "image",
    .summary = "prepare, list, check and remove images",
    .synopsis = "image pull|info|rm NAME... | image ls|verify|prune [FLAGS]",
    .description = "An image is a preset (python, node) or a source: debian:SUITE+PACKAGE,..., tar:FILE, dir:FOLDER.\n"
                   "It is prepared once and kept; `run` prepares what is missing by itself.\n\n"
                   "  iii-sandbox image pull python\n"
                   "  iii-sandbox image pull debian:bookworm+gcc,make\n"
                   "  iii-sandbox image ls --json\n"
                   "  iii-sandbox image verify        reads everything and drops what is damaged (exit status 1 if so)\n"
                   "  iii-sandbox image prune --max-gb 10",
    .options = options,
    .run = run,
};
