/* SPDX-License-Identifier: Apache-2.0 */
#include "image/catalog.h"

#include "base/cleanup.h"
#include "base/limits.h"
#include "base/text.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

#define SUITE "bookworm"

struct preset {
    const char *name, *source;
    const char *env[5];
};

static const struct preset presets[] = {
    {"python",
     "debian:" SUITE "+python3,python3-pip,python3-venv,python-is-python3,ca-certificates,procps,xxd",
     {"PIP_BREAK_SYSTEM_PACKAGES=1", "PIP_ROOT_USER_ACTION=ignore", "LANG=C.UTF-8"}},
    {"node",
     "debian:" SUITE "+nodejs,npm,ca-certificates,procps,xxd",
     {"NODE_OPTIONS=--experimental-global-webcrypto", "LANG=C.UTF-8"}},
};
#define PRESETS_LEN (sizeof presets / sizeof *presets)

static const char *const source_kinds[] = {"debian:", "tar:", "dir:"};

void recipe_done(struct recipe *recipe)
{
    free(recipe->name);
    free(recipe->source);
    free(recipe->workdir);
    free(recipe->user);
    strv_done(&recipe->env);
    strv_done(&recipe->entrypoint);
    strv_done(&recipe->command);
    *recipe = (struct recipe){0};
}

void record_done(struct record *record)
{
    recipe_done(&record->recipe);
}

const char *const *catalog_presets(void)
{
    static const char *names[PRESETS_LEN + 1];
    for (size_t i = 0; i < PRESETS_LEN; i++)
        names[i] = presets[i].name;
    return names;
}

static bool is_source(const char *name)
{
    for (size_t i = 0; i < sizeof source_kinds / sizeof *source_kinds; i++)
        if (text_has_prefix(name, source_kinds[i]) && name[strlen(source_kinds[i])])
            return true;
    return false;
}

/* A relative path would be another file tomorrow. */
static bool is_relative(const char *name)
{
    return (text_has_prefix(name, "tar:") || text_has_prefix(name, "dir:")) && name[4] != '/';
}

int catalog_find(const char *name, struct recipe *ret_recipe, struct err *e)
{
    const struct preset *preset = NULL;
    for (size_t i = 0; i < PRESETS_LEN; i++)
        if (!strcmp(presets[i].name, name))
            preset = &presets[i];
    if (!preset && !is_source(name))
        return err_set(e, ERR_IMAGE_REFUSED,
                       "there is no image '%s': it is neither a preset (%s, %s) nor debian:, tar: or dir:", name, presets[0].name,
                       presets[1].name);
    if (!preset && is_relative(name))
        return err_set(e, ERR_IMAGE_REFUSED, "the image '%s' needs an absolute path", name);
    struct recipe recipe = {
        .name = xstrdup(name), .source = xstrdup(preset ? preset->source : name), .workdir = xstrdup(""), .user = xstrdup("")};
    for (size_t i = 0; preset && preset->env[i]; i++)
        strv_add(&recipe.env, preset->env[i]);
    *ret_recipe = recipe;
    return 0;
}

static bool is_plain(char c)
{
    return isalnum((unsigned char)c) || c == '-' || c == '_' || c == '.';
}

/* FNV-1a; only to keep long names apart. */
static uint64_t short_hash(const char *text)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (; *text; text++)
        h = (h ^ (uint8_t)*text) * 0x100000001b3u;
    return h;
}

char *catalog_file_name(const char *name)
{
    char *text = xmalloc(3 * strlen(name) + 1), *at = text;
    for (const char *c = name; *c; c++) {
        if (is_plain(*c) && !(c == name && *c == '.'))
            *at++ = *c;
        else
            at += snprintf(at, 4, "%%%02X", (unsigned char)*c);
    }
    *at = 0;
    if (strlen(text) <= 150)
        return text;
    char *cut = xasprintf("%.120s-%016llx", text, (unsigned long long)short_hash(name));
    free(text);
    return cut;
}

/* One "key value" line; the value's line ends and backslashes are escaped. */
static void put_line(char **text, size_t *len, const char *key, const char *value)
{
    char *grown = xrealloc(*text, *len + strlen(key) + 2 * strlen(value) + 3);
    *text = grown;
    *len += (size_t)snprintf(grown + *len, strlen(key) + 2, "%s ", key);
    for (; *value; value++) {
        if (*value == '\\' || *value == '\n')
            grown[(*len)++] = '\\';
        grown[(*len)++] = (char)(*value == '\n' ? 'n' : *value);
    }
    grown[(*len)++] = '\n';
    grown[*len] = 0;
}

static void put_list(char **text, size_t *len, const char *key, const struct strv *list)
{
    for (size_t i = 0; i < list->len; i++)
        put_line(text, len, key, list->items[i]);
}

char *record_format(const struct record *record)
{
    char *text = NULL, number[32];
    size_t len = 0;
    const struct recipe *r = &record->recipe;
    put_line(&text, &len, "name", r->name);
    put_line(&text, &len, "source", r->source);
    put_line(&text, &len, "digest", record->digest);
    snprintf(number, sizeof number, "%llu", (unsigned long long)record->bytes);
    put_line(&text, &len, "bytes", number);
    snprintf(number, sizeof number, "%llu", (unsigned long long)record->made_secs);
    put_line(&text, &len, "made", number);
    put_list(&text, &len, "env", &r->env);
    put_list(&text, &len, "entrypoint", &r->entrypoint);
    put_list(&text, &len, "command", &r->command);
    put_line(&text, &len, "workdir", r->workdir);
    put_line(&text, &len, "user", r->user);
    put_line(&text, &len, "end", "");
    return text;
}

static void unescape(char *value)
{
    char *to = value;
    for (const char *from = value; *from; from++) {
        if (*from == '\\' && from[1]) {
            from++;
            *to++ = (char)(*from == 'n' ? '\n' : *from);
        } else {
            *to++ = *from;
        }
    }
    *to = 0;
}

static void set_text(char **at, const char *value)
{
    free(*at);
    *at = xstrdup(value);
}

static int parse_line(const char *key, const char *value, struct record *record, bool *ended, struct err *e)
{
    struct recipe *r = &record->recipe;
    if (!strcmp(key, "name"))
        set_text(&r->name, value);
    else if (!strcmp(key, "source"))
        set_text(&r->source, value);
    else if (!strcmp(key, "workdir"))
        set_text(&r->workdir, value);
    else if (!strcmp(key, "user"))
        set_text(&r->user, value);
    else if (!strcmp(key, "env"))
        strv_add(&r->env, value);
    else if (!strcmp(key, "entrypoint"))
        strv_add(&r->entrypoint, value);
    else if (!strcmp(key, "command"))
        strv_add(&r->command, value);
    else if (!strcmp(key, "bytes"))
        return text_parse_u64(value, IMAGE_BYTES_MAX, &record->bytes, e);
    else if (!strcmp(key, "made"))
        return text_parse_u64(value, INT64_MAX, &record->made_secs, e);
    else if (!strcmp(key, "end"))
        *ended = true;
    else if (!strcmp(key, "digest") && strlen(value) == 64 && strspn(value, "0123456789abcdef") == 64)
        memcpy(record->digest, value, 65);
    else
        return err_set(e, ERR_INVALID, "the line '%.40s'", key);
    return 0;
}

int record_parse(const char *text, struct record *ret_record, struct err *e)
{
    struct record record = {0};
    auto_free char *copy = xstrdup(text);
    char *rest = copy;
    bool ended = false;
    for (char *line; !ended && (line = strsep(&rest, "\n"));) {
        char *value = strchr(line, ' ');
        if (value)
            *value++ = 0;
        if (value)
            unescape(value);
        if (parse_line(line, value ? value : "", &record, &ended, e)) {
            record_done(&record);
            return -1;
        }
    }
    if (!ended || !record.digest[0] || !record.recipe.name || !record.recipe.source || !record.recipe.workdir ||
        !record.recipe.user) {
        record_done(&record);
        return err_set(e, ERR_INVALID, "the file is not whole");
    }
    *ret_record = record;
    return 0;
}

static bool lists_equal(const struct strv *a, const struct strv *b)
{
    if (a->len != b->len)
        return false;
    for (size_t i = 0; i < a->len; i++)
        if (strcmp(a->items[i], b->items[i]) != 0)
            return false;
    return true;
}

bool recipe_equals(const struct recipe *a, const struct recipe *b)
{
    return !strcmp(a->name, b->name) && !strcmp(a->source, b->source) && !strcmp(a->workdir, b->workdir) &&
           !strcmp(a->user, b->user) && lists_equal(&a->env, &b->env) && lists_equal(&a->entrypoint, &b->entrypoint) &&
           lists_equal(&a->command, &b->command);
}
