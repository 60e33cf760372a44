/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/url.h"

#include "base/text.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static const struct {
    const char *name;
    uint16_t port;
} schemes[] = {{"ws", 80}, {"wss", 443}, {"http", 80}, {"https", 443}};

static int parse_port(const char *text, size_t len, uint16_t *ret_port, struct err *e)
{
    char digits[8];
    if (len >= sizeof digits)
        return err_set(e, ERR_INVALID, "the port is too long");
    memcpy(digits, text, len);
    digits[len] = 0;
    uint64_t port;
    if (text_parse_u64(digits, 65535, &port, e))
        return err_wrap(e, "the port");
    if (port == 0)
        return err_set(e, ERR_INVALID, "port 0 cannot be connected to");
    *ret_port = (uint16_t)port;
    return 0;
}

static int parse_authority(const char *text, size_t len, struct url *url, struct err *e)
{
    const char *host = text, *rest;
    size_t host_len;
    if (len && *text == '[') {
        const char *end = memchr(text, ']', len);
        if (!end)
            return err_set(e, ERR_INVALID, "'[' without ']'");
        host = text + 1;
        host_len = (size_t)(end - host);
        rest = end + 1;
    } else {
        const char *colon = memchr(text, ':', len);
        host_len = colon ? (size_t)(colon - text) : len;
        rest = text + host_len;
    }
    size_t rest_len = len - (size_t)(rest - text);
    if (!host_len || host_len >= sizeof url->host || memchr(host, '@', host_len))
        return err_set(e, ERR_INVALID, "there is no host name in it");
    for (size_t i = 0; i < host_len; i++)
        if ((unsigned char)host[i] <= ' ' || host[i] == 0x7f)
            return err_set(e, ERR_INVALID, "there is a blank in the host name");
    memcpy(url->host, host, host_len);
    url->host[host_len] = 0;
    if (!rest_len)
        return 0;
    if (*rest != ':')
        return err_set(e, ERR_INVALID, "a port is expected behind ']'");
    return parse_port(rest + 1, rest_len - 1, &url->port, e);
}

int url_parse(const char *text, struct url *ret_url, struct err *e)
{
    struct url url = {.path = "/"};
    const char *mark = strstr(text, "://");
    for (size_t i = 0; mark && i < sizeof schemes / sizeof *schemes; i++) {
        if (strlen(schemes[i].name) == (size_t)(mark - text) && strncasecmp(text, schemes[i].name, (size_t)(mark - text)) == 0) {
            snprintf(url.scheme, sizeof url.scheme, "%s", schemes[i].name);
            url.port = schemes[i].port;
        }
    }
    if (!url.scheme[0])
        return err_set(e, ERR_INVALID, "'%.200s' is not a ws://, wss://, http:// or https:// URL", text);
    const char *authority = mark + 3;
    size_t len = strcspn(authority, "/?#");
    const char *path = authority + len;
    if (strpbrk(path, "?# \t\r\n"))
        return err_set(e, ERR_INVALID, "'%.200s': a URL with '?', '#' or blanks cannot be used here", text);
    if (parse_authority(authority, len, &url, e))
        return err_wrap(e, "'%.200s'", text);
    size_t path_len = strlen(path);
    while (path_len > 1 && path[path_len - 1] == '/')
        path_len--;
    if (path_len >= sizeof url.path)
        return err_set(e, ERR_INVALID, "the URL's path is too long");
    if (path_len) {
        memcpy(url.path, path, path_len);
        url.path[path_len] = 0;
    }
    *ret_url = url;
    return 0;
}
