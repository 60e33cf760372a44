/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/config.h"

#include "base/check.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/text.h"

#include <errno.h>
#include <string.h>
#include <yaml.h>

#define NEAR_ENOUGH 3u

enum key_kind { KEY_NUMBER, KEY_TEXT, KEY_CHOICE, KEY_TEXTS, KEY_IMAGES };

struct key {
    const char *name;
    enum key_kind kind;
    size_t offset;
    uint64_t min, max;          /* KEY_NUMBER */
    const char *const *choices; /* KEY_CHOICE, NULL-terminated; the first is the default */
    uint64_t number;            /* default of KEY_NUMBER */
    const char *example;        /* for messages */
};

static const char *const accels[] = {"auto", "kvm", "tcg", NULL};
static const char *const backends[] = {"auto", "qemu", NULL};

#define AT(field) offsetof(struct config, field)

static const struct key keys[] = {
    {"accel", KEY_CHOICE, AT(accel), 0, 0, accels, 0, "accel: auto"},
    {"allowed_origins", KEY_TEXTS, AT(allowed_origins), 0, 0, NULL, 0, "allowed_origins: [\"http://localhost:3000\"]"},
    {"backend", KEY_CHOICE, AT(backend), 0, 0, backends, 0, "backend: auto"},
    {"custom_images", KEY_IMAGES, AT(custom_images), 0, 0, NULL, 0, "custom_images: {tools: \"debian:bookworm+git,make\"}"},
    {"default_cpus", KEY_NUMBER, AT(default_cpus), 1, VM_CPUS_MAX, NULL, 1, "default_cpus: 1"},
    {"default_disk_mb", KEY_NUMBER, AT(default_disk_mb), 16, 1 << 20, NULL, 2048, "default_disk_mb: 2048"},
    {"default_memory_mb", KEY_NUMBER, AT(default_memory_mb), 128, VM_MEMORY_MB_MAX, NULL, 512, "default_memory_mb: 512"},
    {"host", KEY_TEXT, AT(host), 0, 0, NULL, 0, "host: 127.0.0.1"},
    {"image_store_max_gb", KEY_NUMBER, AT(image_store_max_gb), 1, 1 << 20, NULL, 40, "image_store_max_gb: 40"},
    {"kernel", KEY_TEXT, AT(kernel), 0, 0, NULL, 0, "kernel: /boot/vmlinuz"},
    {"kernel_modules", KEY_TEXT, AT(kernel_modules), 0, 0, NULL, 0, "kernel_modules: /lib/modules/6.1.0"},
    {"max_disk_mb", KEY_NUMBER, AT(max_disk_mb), 16, 1 << 20, NULL, 20480, "max_disk_mb: 20480"},
    {"port", KEY_NUMBER, AT(port), 0, 65535, NULL, 49134, "port: 49134"},
    {"token", KEY_TEXT, AT(token), 0, 0, NULL, 0, "token: \"a long secret\""},
};

#define KEYS_LEN (sizeof keys / sizeof *keys)

/* --- the struct --- */

static void *place_of(struct config *config, const struct key *key)
{
    return (char *)config + key->offset;
}

static void set_text(struct config *config, const struct key *key, const char *text)
{
    char **place = place_of(config, key);
    free(*place);
    *place = xstrdup(text);
}

void config_init(struct config *config)
{
    *config = (struct config){0};
    for (size_t i = 0; i < KEYS_LEN; i++) {
        if (keys[i].kind == KEY_NUMBER)
            *(uint64_t *)place_of(config, &keys[i]) = keys[i].number;
        else if (keys[i].kind == KEY_CHOICE)
            set_text(config, &keys[i], keys[i].choices[0]);
    }
}

void config_done(struct config *config)
{
    if (!config)
        return;
    for (size_t i = 0; i < KEYS_LEN; i++)
        if (keys[i].kind == KEY_TEXT || keys[i].kind == KEY_CHOICE)
            free(*(char **)place_of(config, &keys[i]));
    for (size_t i = 0; i < config->custom_images_len; i++) {
        free(config->custom_images[i].name);
        free(config->custom_images[i].source);
    }
    free(config->custom_images);
    strv_done(&config->allowed_origins);
    *config = (struct config){0};
}

/* --- reading one document --- */

struct reading {
    const char *name;
    yaml_document_t document;
    struct config *config;
};

static int fail(const struct reading *r, const yaml_node_t *node, struct err *e, const char *what)
{
    return err_set(e, ERR_USAGE, "%s:%zu:%zu: %s", r->name, node->start_mark.line + 1, node->start_mark.column + 1, what);
}

/* The text of a scalar, NULL for anything else or with a NUL in it. */
static const char *scalar(const yaml_node_t *node)
{
    const char *text = node->type == YAML_SCALAR_NODE ? (const char *)node->data.scalar.value : NULL;
    return text && strlen(text) == node->data.scalar.length ? text : NULL;
}

static int want(const struct reading *r, const struct key *key, const yaml_node_t *node, const char *kind, struct err *e)
{
    auto_free char *text = xasprintf("%s is not %s; write for example: %s", key->name, kind, key->example);
    return fail(r, node, e, text);
}

static int take_number(struct reading *r, const struct key *key, const yaml_node_t *node, struct err *e)
{
    struct err inner = ERR_INIT;
    uint64_t value;
    const char *text = scalar(node);
    if (!text || text_parse_u64(text, key->max, &value, &inner) || value < key->min) {
        auto_free char *kind =
            xasprintf("a number from %llu to %llu", (unsigned long long)key->min, (unsigned long long)key->max);
        return want(r, key, node, kind, e);
    }
    *(uint64_t *)place_of(r->config, key) = value;
    return 0;
}

static int take_choice(struct reading *r, const struct key *key, const yaml_node_t *node, struct err *e)
{
    const char *text = scalar(node);
    if (text && text_is_one_of(text, key->choices)) {
        set_text(r->config, key, text);
        return 0;
    }
    auto_free char *list = xstrdup("one of");
    for (size_t i = 0; key->choices[i]; i++) {
        char *longer = xasprintf("%s%s %s", list, i ? "," : "", key->choices[i]);
        free(list);
        list = longer;
    }
    return want(r, key, node, list, e);
}

static int take_texts(struct reading *r, const struct key *key, const yaml_node_t *node, struct err *e)
{
    if (node->type != YAML_SEQUENCE_NODE)
        return want(r, key, node, "a list", e);
    for (const yaml_node_item_t *item = node->data.sequence.items.start; item < node->data.sequence.items.top; item++) {
        const yaml_node_t *one = yaml_document_get_node(&r->document, *item);
        const char *text = scalar(one);
        if (!text || !*text)
            return want(r, key, one, "a list of texts", e);
        if (r->config->allowed_origins.len >= CONFIG_LIST_MAX)
            return fail(r, one, e, "the list is too long");
        strv_add(place_of(r->config, key), text);
    }
    return 0;
}

static int take_image(struct reading *r, const yaml_node_t *name_node, const yaml_node_t *source_node, struct err *e)
{
    static const char *const presets[] = {"python", "node", NULL};
    const char *name = scalar(name_node), *source = scalar(source_node);
    struct config *config = r->config;
    if (!name || !*name)
        return fail(r, name_node, e, "custom_images: a name must not be empty");
    if (text_is_one_of(name, presets)) {
        auto_free char *text = xasprintf("custom_images: '%.100s' shadows a built-in preset; choose another name", name);
        return fail(r, name_node, e, text);
    }
    if (!source || !*source)
        return fail(r, source_node, e,
                    "custom_images: the source must be a text such as debian:bookworm+git or tar:/path/image.tar");
    if (config->custom_images_len >= CONFIG_LIST_MAX)
        return fail(r, name_node, e, "custom_images: too many");
    config->custom_images = xrealloc(config->custom_images, (config->custom_images_len + 1) * sizeof *config->custom_images);
    config->custom_images[config->custom_images_len++] = (struct config_image){.name = xstrdup(name), .source = xstrdup(source)};
    return 0;
}

static int take_images(struct reading *r, const struct key *key, const yaml_node_t *node, struct err *e)
{
    if (node->type != YAML_MAPPING_NODE)
        return want(r, key, node, "a map of names to sources", e);
    for (const yaml_node_pair_t *pair = node->data.mapping.pairs.start; pair < node->data.mapping.pairs.top; pair++)
        if (take_image(r, yaml_document_get_node(&r->document, pair->key), yaml_document_get_node(&r->document, pair->value), e))
            return -1;
    return 0;
}

/* A plain null, which YAML writes in several ways, is as if the key were not there. */
static bool is_null(const yaml_node_t *node)
{
    static const char *const nulls[] = {"", "~", "null", "Null", "NULL", NULL};
    const char *text = scalar(node);
    return text && node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE && text_is_one_of(text, nulls);
}

static int take_value(struct reading *r, const struct key *key, const yaml_node_t *node, struct err *e)
{
    if (is_null(node))
        return 0;
    switch (key->kind) {
    case KEY_NUMBER:
        return take_number(r, key, node, e);
    case KEY_CHOICE:
        return take_choice(r, key, node, e);
    case KEY_TEXTS:
        return take_texts(r, key, node, e);
    case KEY_IMAGES:
        return take_images(r, key, node, e);
    case KEY_TEXT:
        break;
    }
    const char *text = scalar(node);
    if (!text || !*text)
        return want(r, key, node, "a text", e);
    set_text(r->config, key, text);
    return 0;
}

static int fail_unknown(const struct reading *r, const yaml_node_t *node, const char *name, struct err *e)
{
    struct text_nearest nearest = TEXT_NEAREST_INIT(name, NEAR_ENOUGH);
    for (size_t i = 0; i < KEYS_LEN; i++)
        text_nearest_offer(&nearest, keys[i].name);
    if (strcmp(name, "sandbox") == 0)
        return fail(r, node, e, "legacy wrapped shape: the keys below `sandbox:` stand at the top level now");
    auto_free char *text = nearest.best ? xasprintf("unknown key '%.100s' (did you mean %s?)", name, nearest.best)
                                        : xasprintf("unknown key '%.100s'", name);
    return fail(r, node, e, text);
}

static int take_key(struct reading *r, const yaml_node_t *name_node, const yaml_node_t *value, bool *seen, struct err *e)
{
    const char *name = scalar(name_node);
    if (!name)
        return fail(r, name_node, e, "a key must be a plain word");
    for (size_t i = 0; i < KEYS_LEN; i++) {
        if (strcmp(name, keys[i].name) != 0)
            continue;
        if (seen[i]) {
            auto_free char *text = xasprintf("%s is given twice", name);
            return fail(r, name_node, e, text);
        }
        seen[i] = true;
        return take_value(r, &keys[i], value, e);
    }
    return fail_unknown(r, name_node, name, e);
}

static int take_document(struct reading *r, struct err *e)
{
    bool seen[KEYS_LEN] = {false};
    yaml_node_t *root = yaml_document_get_root_node(&r->document);
    if (!root)
        return err_set(e, ERR_USAGE, "%s: the file is empty; write at least one key, for example: accel: auto", r->name);
    if (root->type != YAML_MAPPING_NODE)
        return fail(r, root, e, "the file must be a map of keys, for example: accel: auto");
    for (const yaml_node_pair_t *pair = root->data.mapping.pairs.start; pair < root->data.mapping.pairs.top; pair++)
        if (take_key(r, yaml_document_get_node(&r->document, pair->key), yaml_document_get_node(&r->document, pair->value), seen,
                     e))
            return -1;
    if (r->config->default_disk_mb > r->config->max_disk_mb)
        return err_set(e, ERR_USAGE, "%s: default_disk_mb %llu is above max_disk_mb %llu", r->name,
                       (unsigned long long)r->config->default_disk_mb, (unsigned long long)r->config->max_disk_mb);
    return 0;
}

static int parse_failed(const yaml_parser_t *parser, const char *name, struct err *e)
{
    const char *problem = parser->problem ? parser->problem : "not YAML";
    if (parser->error == YAML_MEMORY_ERROR)
        return err_set(e, ERR_NOMEM, "%s: no memory", name);
    if (parser->error == YAML_READER_ERROR)
        return err_set(e, ERR_USAGE, "%s: byte %zu: %s", name, parser->problem_offset, problem);
    return err_set(e, ERR_USAGE, "%s:%zu:%zu: %s", name, parser->problem_mark.line + 1, parser->problem_mark.column + 1, problem);
}

int config_parse(struct config *config, const char *name, const char *text, size_t len, struct err *e)
{
    yaml_parser_t parser;
    struct config fresh;
    struct reading r = {.name = name, .config = &fresh};
    if (!yaml_parser_initialize(&parser))
        return err_set(e, ERR_NOMEM, "%s: no memory", name);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, len);
    config_init(&fresh);
    int result;
    if (!yaml_parser_load(&parser, &r.document)) {
        result = parse_failed(&parser, name, e);
    } else {
        result = take_document(&r, e);
        yaml_document_delete(&r.document);
    }
    yaml_parser_delete(&parser);
    if (result) {
        config_done(&fresh);
        return -1;
    }
    config_done(config);
    *config = fresh;
    return 0;
}

static char *default_path(void)
{
    if (geteuid() == 0)
        return xstrdup("/etc/iii-sandbox/config.yaml");
    const char *folder = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    if (folder && folder[0] == '/')
        return xasprintf("%s/iii-sandbox/config.yaml", folder);
    return home && home[0] == '/' ? xasprintf("%s/.config/iii-sandbox/config.yaml", home) : NULL;
}

int config_load(struct config *config, const char *path, struct err *e)
{
    auto_free char *standard = path ? NULL : default_path();
    const char *from = path ? path : standard;
    auto_free char *text = NULL;
    size_t len = 0;
    if (!from)
        return 0;
    if (file_read(from, SMALL_FILE_MAX, &text, &len, e)) {
        if (!path && (e->sys_errno == ENOENT || e->sys_errno == ENOTDIR)) {
            err_clear(e);
            return 0;
        }
        err_recode(e, ERR_USAGE);
        return err_wrap(e, "configuration");
    }
    return config_parse(config, from, text, len, e);
}
