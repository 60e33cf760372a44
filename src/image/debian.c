/* SPDX-License-Identifier: Apache-2.0 */
#include "image/debian.h"

#include "base/file.h"
#include "base/path.h"
#include "base/text.h"
#include "image/tool.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#define DEBIAN_KEYRING "/usr/share/keyrings/debian-archive-keyring.gpg"

/* The parts of the host's apt configuration that say how to reach and trust a mirror. */
static const char *const forwarded_table[] = {
    "Acquire::http::",   "Acquire::https::",
    "Acquire::ftp::",    "Acquire::Check-",
    "Acquire::Max-",     "Acquire::Retries ",
    "Acquire::ForceIPv", "Acquire::Allow",
    "Acquire::By-Hash ", "Acquire::Proxy-Auto-Detect ",
    "Acquire::Queue-",   NULL,
};

struct stage {
    const char *words, *stage;
};

static const struct stage stages_table[] = {
    {"apt-get update", "reading package lists"},     {"downloading packages", "downloading packages"},
    {"extracting archives", "unpacking packages"},   {"installing essential", "installing the base system"},
    {"installing remaining", "installing packages"}, {"cleaning", "cleaning up"},
    {"creating tarball", "writing the image"},
};

const char *debian_stage(const char *line)
{
    for (size_t i = 0; i < sizeof stages_table / sizeof *stages_table; i++)
        if (strstr(line, stages_table[i].words))
            return stages_table[i].stage;
    return NULL;
}

/* A suite or package name of Debian; these words end up in a shell hook and in argv. */
static bool is_word(const char *text, const char *extra)
{
    if (!islower((unsigned char)*text) && !isdigit((unsigned char)*text))
        return false;
    for (; *text; text++)
        if (!islower((unsigned char)*text) && !isdigit((unsigned char)*text) && !strchr(extra, *text))
            return false;
    return true;
}

static int check_packages(const char *packages, struct err *e)
{
    auto_free char *copy = xstrdup(packages);
    char *rest = copy;
    for (char *name; (name = strsep(&rest, ","));)
        if (!is_word(name, "+-."))
            return err_set(e, ERR_INVALID, "'%s' is not a package name", name);
    return 0;
}

/* A file of lines that only we read: they may hold names and passwords, which must not show in a process list. */
static int write_lines(const struct strv *lines, const char *folder, const char *name, char **ret_path, struct err *e)
{
    auto_free char *text = xstrdup(""), *path = xasprintf("%s/%s", folder, name);
    for (size_t i = 0; i < lines->len; i++) {
        char *longer = xasprintf("%s%s\n", text, lines->items[i]);
        free(text);
        text = longer;
    }
    if (file_write_atomic(path, text, strlen(text), 0600, e))
        return -1;
    *ret_path = STEAL_PTR(path);
    return 0;
}

/* The host's package sources of this suite, its updates and its security updates, as lines for sources.list. */
static int host_sources(const char *suite, const char *folder, const struct image_progress *progress, char **ret_path,
                        struct err *e)
{
    auto_strv sources = {0};
    auto_free char *program = path_find_in_path("apt-get", e);
    if (!program)
        return err_wrap(e, "debian: images need a Debian host's tools");
    static const char *const argv[] = {
        "apt-get", "indextargets", "--format", "$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(SIGNED_BY)|", "Created-By: Packages", NULL};
    auto_strv lines = {0};
    if (tool_run("apt-get", program, argv, folder, TOOL_PACKAGES, progress, &lines, e))
        return -1;
    size_t suite_len = strlen(suite);
    for (size_t i = 0; i < lines.len; i++) {
        char *rest = lines.items[i];
        const char *uri = strsep(&rest, "|"), *release = rest ? strsep(&rest, "|") : NULL;
        const char *component = rest ? strsep(&rest, "|") : NULL, *key = rest ? strsep(&rest, "|") : NULL;
        if (!component || !key || strncmp(release, suite, suite_len) != 0)
            continue;
        const char *tail = release + suite_len;
        if (strcmp(tail, "") != 0 && strcmp(tail, "-updates") != 0 && strcmp(tail, "-security") != 0 &&
            strcmp(tail, "/updates") != 0)
            continue;
        if (key[0] == '/')
            strv_addf(&sources, "deb [signed-by=%s] %s %s %s", key, uri, release, component);
        else
            strv_addf(&sources, "deb %s %s %s", uri, release, component);
    }
    if (!sources.len) /* the host knows nothing of this suite: Debian's own mirror */
        strv_addf(&sources, "deb http://deb.debian.org/debian %s main", suite);
    return write_lines(&sources, folder, "sources.list", ret_path, e);
}

static bool is_forwarded(const char *line)
{
    for (size_t i = 0; forwarded_table[i]; i++)
        if (text_has_prefix(line, forwarded_table[i]) && strchr(line, '"'))
            return true;
    return false;
}

/* Writes the forwarded configuration into a file; its absolute paths for authentication are apt's own. */
static int host_configuration(const char *folder, const struct image_progress *progress, char **ret_path, struct err *e)
{
    auto_free char *program = path_find_in_path("apt-config", e);
    if (!program)
        return -1;
    static const char *const argv[] = {"apt-config", "dump", NULL};
    auto_strv lines = {0};
    if (tool_run("apt-config", program, argv, folder, TOOL_PACKAGES, progress, &lines, e))
        return -1;
    auto_strv kept = {0};
    strv_add(&kept, "Dir::Etc::netrc \"/etc/apt/auth.conf\";");
    strv_add(&kept, "Dir::Etc::netrcparts \"/etc/apt/auth.conf.d\";");
    strv_add(&kept, "Acquire::Languages \"none\";");
    strv_add(&kept, "APT::Install-Recommends \"false\";");
    for (size_t i = 0; i < lines.len; i++)
        if (is_forwarded(lines.items[i]))
            strv_add(&kept, lines.items[i]);
    return write_lines(&kept, folder, "apt.conf", ret_path, e);
}

/* dpkg leaves these out of what it unpacks, in the image as well. mmdebstrap's own --dpkgopt would put a slow filter in front
 * of every package, so the base system's are removed at the end instead. */
#define DPKG_SETTINGS                                                                                                            \
    "force-unsafe-io\\n"                                                                                                         \
    "path-exclude=/usr/share/doc/*\\npath-include=/usr/share/doc/*/copyright\\n"                                                 \
    "path-exclude=/usr/share/man/*\\npath-exclude=/usr/share/info/*\\n"                                                          \
    "path-exclude=/usr/share/lintian/*\\npath-exclude=/usr/share/locale/*\\n"

/* Run in mmdebstrap with the new system's folder as $1, before and after all packages: nothing of this host stays. */
static void add_hooks(struct strv *argv, const char *suite)
{
    bool rolling = !strcmp(suite, "sid") || !strcmp(suite, "unstable");
    strv_add(argv, "--setup-hook=mkdir -p \"$1\"/etc/dpkg/dpkg.cfg.d && printf '" DPKG_SETTINGS
                   "' > \"$1\"/etc/dpkg/dpkg.cfg.d/iii-sandbox");
    strv_add(argv, "--customize-hook=rm -rf \"$1\"/etc/apt/apt.conf.d/99mmdebstrap \"$1\"/etc/apt/auth.conf* "
                   "\"$1\"/etc/resolv.conf \"$1\"/etc/hostname \"$1\"/etc/apt/sources.list.d/* \"$1\"/var/log/apt "
                   "\"$1\"/var/log/*.log \"$1\"/var/cache/debconf/*-old \"$1\"/usr/share/man/* \"$1\"/usr/share/info/* "
                   "\"$1\"/usr/share/lintian/* \"$1\"/usr/share/locale/*");
    strv_add(argv, "--customize-hook=find \"$1\"/usr/share/doc -mindepth 1 ! -type d ! -name copyright -delete");
    strv_addf(argv, "--customize-hook=echo 'deb http://deb.debian.org/debian %s main' > \"$1\"/etc/apt/sources.list", suite);
    if (!rolling)
        strv_addf(argv,
                  "--customize-hook=printf 'deb http://deb.debian.org/debian %s-updates main\\ndeb "
                  "http://deb.debian.org/debian-security %s-security main\\n' >> \"$1\"/etc/apt/sources.list",
                  suite, suite);
}

int debian_arguments(const char *source, const char *folder, const struct image_progress *progress, struct strv *ret_argv,
                     struct err *e)
{
    const char *plus = strchr(source, '+');
    auto_free char *suite = plus ? xstrndup(source, (size_t)(plus - source)) : xstrdup(source);
    if (!is_word(suite, "-.") || (plus && check_packages(plus + 1, e)))
        return err_is_set(e) ? -1 : err_set(e, ERR_INVALID, "'%s' is not a suite of Debian", suite);
    auto_strv argv = {0};
    auto_free char *program = path_find_in_path("mmdebstrap", e), *configuration = NULL, *sources = NULL;
    if (!program)
        return err_wrap(e, "debian: images need the package mmdebstrap");
    if (host_sources(suite, folder, progress, &sources, e) || host_configuration(folder, progress, &configuration, e))
        return -1;
    if (tool_enter_range(&argv, e))
        return -1;
    strv_add(&argv, program);
    strv_add(&argv, "--mode=root");
    strv_add(&argv, "--variant=minbase");
    strv_add(&argv, "--format=tar");
    strv_addf(&argv, "--aptopt=%s", configuration);
    if (plus)
        strv_addf(&argv, "--include=%s", plus + 1);
    if (access(DEBIAN_KEYRING, R_OK) == 0)
        strv_add(&argv, "--keyring=" DEBIAN_KEYRING);
    add_hooks(&argv, suite);
    strv_add(&argv, suite);
    strv_add(&argv, "-");
    strv_add(&argv, sources);
    *ret_argv = argv;
    argv = (struct strv){0};
    return 0;
}
