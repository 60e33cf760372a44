/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/run_options.h"

#include "base/check.h"
#include "base/cleanup.h"
#include "base/text.h"

#include <string.h>
#include <strings.h>

#define AT(field) offsetof(struct run_options, field)

const struct cli_option run_option_table[] = {
    {"env", 'e', CLI_LIST, AT(env), 0, 0, "K=V", "set an environment variable (K alone: take ours); repeatable"},
    {"memory", 'm', CLI_NUMBER, AT(memory_mb), 128, 1 << 20, "MIB", "memory of the machine (512)"},
    {"cpus", 0, CLI_NUMBER, AT(cpus), 1, 64, "N", "virtual CPUs (1)"},
    {"disk", 0, CLI_NUMBER, AT(disk_mb), 16, 1 << 20, "MIB", "size limit of what the guest may write (2048)"},
    {"timeout", 0, CLI_DURATION, AT(timeout_ms), 0, 0, "DURATION",
     "end the command after this time, such as 500ms, 30s, '1h 30m'"},
    {"workdir", 'w', CLI_TEXT, AT(workdir), 0, 0, "PATH", "directory in the guest to start in"},
    {"user", 'u', CLI_TEXT, AT(user), 0, 0, "USER[:GROUP]", "user in the guest, by name or number (root)"},
    {"tty", 't', CLI_FLAG, AT(tty), 0, 0, NULL, "give the command a terminal"},
    {"lang", 0, CLI_TEXT, AT(lang), 0, 0, "LANGUAGE",
     "run a local script: python, node or shell; `-` reads it from standard input"},
    {"file", 'f', CLI_LIST, AT(files), 0, 0, "LOCAL:REMOTE", "copy a file or folder into the guest first; repeatable"},
    {"out", 'o', CLI_LIST, AT(outs), 0, 0, "REMOTE:LOCAL",
     "copy a file or folder back afterwards, whatever the exit status; repeatable"},
    {"json", 0, CLI_FLAG, AT(json), 0, 0, NULL, "print the result, with the output in it, as one JSON object"},
    {"accel", 0, CLI_TEXT, AT(accel), 0, 0, "ACCEL", "auto, kvm or tcg (auto)"},
    {"config", 0, CLI_TEXT, AT(config), 0, 0, "FILE", "the configuration to use"},
    {0},
};

static const struct run_language languages[] = {
    {{"python", "py"}, "python3", "/tmp/run.py"},
    {{"node", "js", "javascript"}, "node", "/tmp/run.js"},
    {{"shell", "sh", "bash"}, "/bin/sh", "/tmp/run.sh"},
};

const struct run_language *run_language_find(const char *name)
{
    for (size_t i = 0; i < sizeof languages / sizeof *languages; i++)
        for (const char *const *known = languages[i].names; *known; known++)
            if (strcasecmp(*known, name) == 0)
                return &languages[i];
    return NULL;
}

void run_options_done(struct run_options *options)
{
    strv_done(&options->env);
    strv_done(&options->files);
    strv_done(&options->outs);
}

static int check_env(const struct strv *env, struct err *e)
{
    for (size_t i = 0; i < env->len; i++) {
        const char *item = env->items[i], *equals = strchr(item, '=');
        size_t name_len = equals ? (size_t)(equals - item) : strlen(item);
        if (!text_is_env_name(item, name_len))
            return err_set(e, ERR_USAGE, "--env '%.*s': a name is letters, digits and _, not beginning with a digit",
                           (int)name_len, item);
        if (!equals && !getenv(item))
            return err_set(e, ERR_USAGE, "--env %s: it is not set here either; write %s=VALUE", item, item);
    }
    return 0;
}

int run_options_check(const struct run_options *options, const struct cli_words *words, struct err *e)
{
    static const char *const accels[] = {"auto", "kvm", "tcg", NULL};
    if (!words->words_len)
        return err_set(e, ERR_USAGE, "which image? For example: iii-sandbox run python -- python3 -c 'print(2+2)'");
    if (options->lang && !run_language_find(options->lang))
        return err_set(e, ERR_USAGE, "--lang %s is not one of python, node, shell", options->lang);
    if (options->lang && words->words_len < 2)
        return err_set(e, ERR_USAGE, "--lang needs a script after the image: a file, or - for standard input");
    size_t words_max = options->lang ? 2 : 1;
    if (words->words_len > words_max)
        return err_set(e, ERR_USAGE, "'%s' is one word too many; the guest's command goes after --", words->words[words_max]);
    if (options->json && options->tty)
        return err_set(e, ERR_USAGE, "--json and --tty exclude each other");
    if (options->accel && !text_is_one_of(options->accel, accels))
        return err_set(e, ERR_USAGE, "--accel %s is not one of auto, kvm, tcg", options->accel);
    if (words->command && !words->command_len && !options->lang)
        return err_set(e, ERR_USAGE, "no command after --");
    return check_env(&options->env, e);
}

/* Sets one variable in a list, replacing an earlier value of the same name. */
static void env_set(struct strv *env, const char *item)
{
    size_t name_len = strcspn(item, "=") + 1;
    for (size_t i = 0; i < env->len; i++)
        if (strncmp(env->items[i], item, name_len) == 0) {
            free(env->items[i]);
            env->items[i] = xstrdup(item);
            return;
        }
    strv_add(env, item);
}

static void make_env(const struct run_options *options, const struct image *image, struct strv *ret_env)
{
    for (size_t i = 0; i < image->env.len; i++)
        env_set(ret_env, image->env.items[i]);
    for (size_t i = 0; i < options->env.len; i++) {
        const char *item = options->env.items[i];
        auto_free char *inherited = strchr(item, '=') ? NULL : xasprintf("%s=%s", item, getenv(item));
        env_set(ret_env, inherited ? inherited : item);
    }
}

static void add_all(struct strv *list, char *const *items, size_t len)
{
    for (size_t i = 0; i < len; i++)
        strv_add(list, items[i]);
}

int run_request_make(const struct run_options *options, const struct cli_words *words, const struct image *image,
                     struct wire_request *ret_request, struct err *e)
{
    struct wire_request request = {.operation = WIRE_OP_EXEC};
    struct wire_exec *exec = &request.exec;
    if (options->lang) {
        const struct run_language *language = run_language_find(options->lang);
        CHECK(language); /* run_options_check has seen it */
        strv_add(&exec->argv, language->program);
        strv_add(&exec->argv, language->path);
        add_all(&exec->argv, words->command, words->command_len);
    } else if (words->command) {
        add_all(&exec->argv, words->command, words->command_len);
    } else {
        add_all(&exec->argv, image->entrypoint.items, image->entrypoint.len);
        add_all(&exec->argv, image->command.items, image->command.len);
    }
    if (!exec->argv.len) {
        wire_request_done(&request);
        return err_set(e, ERR_USAGE, "the image '%s' names no command of its own: give one after --", image->name);
    }
    make_env(options, image, &exec->env);
    exec->cwd = xstrdup(options->workdir ? options->workdir : image->workdir);
    exec->user = xstrdup(options->user ? options->user : image->user);
    exec->timeout_ms = options->timeout_ms;
    *ret_request = request;
    return 0;
}
