/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/config.h"

#include "base/cleanup.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/text.h"
#include "engine/server.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <yaml.h>

enum key_kind { KEY_TEXT, KEY_NUMBER, KEY_TEXT_LIST };

static const struct config_key {
    const char *name;
    enum key_kind kind;
    size_t offset;
    uint64_t max; /* KEY_NUMBER */
} config_keys[] = {
    {"port", KEY_NUMBER, offsetof(struct config, port), 65535},
    {"host", KEY_TEXT, offsetof(struct config, host), 0},
    {"token", KEY_TEXT, offsetof(struct config, token), 0},
    {"allowed_origins", KEY_TEXT_LIST, offsetof(struct config, allowed_origins), 0},
};

void config_init(struct config *config)
{
    *config = (struct config){.port = SERVER_PORT};
}

void config_done(struct config *config)
{
    if (!config)
        return;
    free(config->host);
    free(config->token);
    strv_done(&config->allowed_origins);
    config_init(config);
}

/* What the readers of values share. */
struct source {
    const char *name;
    yaml_document_t *document;
    struct err *e;
};

static int fail_at(const struct source *source, const yaml_node_t *node, const char *key, const char *problem)
{
    return err_set(source->e, ERR_USAGE, "%s, line %zu, column %zu: '%s' %s", source->name, node->start_mark.line + 1,
                   node->start_mark.column + 1, key, problem);
}

/* Whether the scalar is a plain null, which YAML writes in four ways. */
static bool is_null(const yaml_node_t *node)
{
    static const char *const nulls[] = {"", "~", "null", "Null", "NULL", NULL};
    return node->type == YAML_SCALAR_NODE && node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
           text_is_one_of((const char *)node->data.scalar.value, nulls);
}

/* Borrowed; NULL when it is no text. */
static const char *text_of(const yaml_node_t *node)
{
    if (node->type != YAML_SCALAR_NODE || strlen((const char *)node->data.scalar.value) != node->data.scalar.length)
        return NULL;
    return (const char *)node->data.scalar.value;
}

static int read_list(const struct source *source, const struct config_key *key, const yaml_node_t *node, struct strv *list)
{
    struct strv read = {0};
    if (node->type != YAML_SEQUENCE_NODE)
        return fail_at(source, node, key->name, "must be a list");
    const yaml_node_item_t *start = node->data.sequence.items.start, *end = node->data.sequence.items.top;
    if (end - start > CONFIG_LIST_MAX)
        return fail_at(source, node, key->name, "has too many items");
    for (const yaml_node_item_t *item = start; item < end; item++) {
        const yaml_node_t *value = yaml_document_get_node(source->document, *item);
        const char *text = value ? text_of(value) : NULL;
        if (!text) {
            strv_done(&read);
            return fail_at(source, value ? value : node, key->name, "must be a list of texts");
        }
        strv_add(&read, text);
    }
    strv_done(list);
    *list = read;
    return 0;
}

static int read_value(const struct source *source, const struct config_key *key, const yaml_node_t *node, struct config *config)
{
    void *place = (char *)config + key->offset;
    if (is_null(node))
        return 0; /* as if it were not there */
    const char *text = text_of(node);
    struct err inner = ERR_INIT;
    uint64_t number;
    switch (key->kind) {
    case KEY_TEXT:
        if (!text || !*text)
            return fail_at(source, node, key->name, "must be a text");
        free(*(char **)place);
        *(char **)place = xstrdup(text);
        return 0;
    case KEY_NUMBER:
        if (!text || text_parse_u64(text, key->max, &number, &inner))
            return fail_at(source, node, key->name, "must be a whole number in its range");
        *(uint64_t *)place = number;
        return 0;
    case KEY_TEXT_LIST:
        return read_list(source, key, node, place);
    }
    return 0;
}

static int fail_unknown(const struct source *source, const yaml_node_t *node, const char *name)
{
    const char *best = NULL;
    unsigned best_distance = 4; /* at most three letters wrong */
    for (size_t i = 0; i < sizeof config_keys / sizeof *config_keys; i++) {
        unsigned distance = text_distance(name, config_keys[i].name);
        if (distance < best_distance) {
            best = config_keys[i].name;
            best_distance = distance;
        }
    }
    if (!best)
        return fail_at(source, node, name, "is not a known key");
    auto_free char *problem = xasprintf("is not a known key (did you mean '%s'?)", best);
    return fail_at(source, node, name, problem);
}

static int read_root(const struct source *source, struct config *config)
{
    const yaml_node_t *root = yaml_document_get_root_node(source->document);
    if (!root || is_null(root))
        return 0; /* an empty file */
    if (root->type != YAML_MAPPING_NODE)
        return fail_at(source, root, "the file", "must be a mapping of keys");
    bool seen[sizeof config_keys / sizeof *config_keys] = {false};
    for (const yaml_node_pair_t *pair = root->data.mapping.pairs.start; pair < root->data.mapping.pairs.top; pair++) {
        const yaml_node_t *key_node = yaml_document_get_node(source->document, pair->key);
        const yaml_node_t *value = yaml_document_get_node(source->document, pair->value);
        const char *name = key_node ? text_of(key_node) : NULL;
        if (!name || !value)
            return fail_at(source, root, "the file", "must be a mapping of texts to values");
        size_t i = 0;
        while (i < sizeof config_keys / sizeof *config_keys && strcmp(config_keys[i].name, name) != 0)
            i++;
        if (i == sizeof config_keys / sizeof *config_keys)
            return fail_unknown(source, key_node, name);
        if (seen[i])
            return fail_at(source, key_node, name, "is there twice");
        seen[i] = true;
        if (read_value(source, &config_keys[i], value, config))
            return -1;
    }
    return 0;
}

int config_parse(struct config *config, const char *name, const char *text, size_t len, struct err *e)
{
    yaml_parser_t parser;
    yaml_document_t document;
    if (!yaml_parser_initialize(&parser))
        return err_set(e, ERR_NOMEM, "no memory to read %s", name);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, len);
    int result = -1;
    if (!yaml_parser_load(&parser, &document)) {
        err_set(e, ERR_USAGE, "%s, line %zu, column %zu: %s", name, parser.problem_mark.line + 1, parser.problem_mark.column + 1,
                parser.problem ? parser.problem : "not YAML");
    } else {
        struct source source = {.name = name, .document = &document, .e = e};
        result = read_root(&source, config);
        yaml_document_delete(&document);
    }
    yaml_parser_delete(&parser);
    return result;
}

static char *default_path(void)
{
    if (geteuid() == 0)
        return xstrdup("/etc/iii-sandbox/config.yaml");
    const char *config_home = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    if (config_home && *config_home == '/')
        return xasprintf("%s/iii-sandbox/config.yaml", config_home);
    return home && *home == '/' ? xasprintf("%s/.config/iii-sandbox/config.yaml", home) : NULL;
}

int config_load(struct config *config, const char *path, struct err *e)
{
    auto_free char *place = path ? xstrdup(path) : default_path();
    auto_free char *text = NULL;
    size_t len;
    if (!place)
        return 0;
    if (file_read(place, SMALL_FILE_MAX, &text, &len, e)) {
        if (!path && (e->sys_errno == ENOENT || e->sys_errno == ENOTDIR)) {
            err_clear(e);
            return 0;
        }
        err_recode(e, ERR_USAGE);
        return err_wrap(e, "the configuration");
    }
    return config_parse(config, place, text, len, e);
}
