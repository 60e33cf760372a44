/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/users.h"

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/text.h"

#include <string.h>

#define FIELDS_MAX 7
#define ID_MAX 0xfffffffeu /* the last number is "no id" */

struct piece {
    const char *text;
    size_t len;
};

/* Cuts the line at *at into fields by ':' and moves on; the field count, 0 at the end of the text. */
static size_t next_line(const char **at, struct piece fields[FIELDS_MAX])
{
    if (!**at)
        return 0;
    size_t line_len = strcspn(*at, "\n"), count = 0;
    const char *field = *at, *end = *at + line_len;
    for (;;) {
        const char *colon = count + 1 < FIELDS_MAX ? memchr(field, ':', (size_t)(end - field)) : NULL;
        fields[count++] = (struct piece){field, (size_t)((colon ? colon : end) - field)};
        if (!colon)
            break;
        field = colon + 1;
    }
    *at = *end ? end + 1 : end;
    return count;
}

static bool piece_is(const struct piece *piece, const char *text)
{
    return strlen(text) == piece->len && !memcmp(piece->text, text, piece->len);
}

static bool parse_id(const struct piece *piece, uint32_t *ret_id)
{
    char text[16];
    uint64_t value;
    struct err e = ERR_INIT;
    if (piece->len >= sizeof text)
        return false;
    memcpy(text, piece->text, piece->len);
    text[piece->len] = 0;
    if (text_parse_u64(text, ID_MAX, &value, &e))
        return false;
    *ret_id = (uint32_t)value;
    return true;
}

static bool name_parse_id(const char *name, uint32_t *ret_id)
{
    struct piece piece = {name, strlen(name)};
    return parse_id(&piece, ret_id);
}

/* The entry by name, or else by number, so that a user whose name is all digits is found first. */
static bool find_passwd(const char *passwd, const char *name, const uint32_t *id, struct user *user)
{
    struct piece f[FIELDS_MAX];
    size_t count;
    for (const char *at = passwd ? passwd : ""; (count = next_line(&at, f));) {
        uint32_t uid, gid;
        if (count < 4 || !f[0].len || !parse_id(&f[2], &uid) || !parse_id(&f[3], &gid))
            continue;
        if (id ? uid != *id : !piece_is(&f[0], name))
            continue;
        user->uid = uid;
        user->gid = gid;
        user->name = xstrndup(f[0].text, f[0].len);
        if (count > 5 && f[5].len)
            user->home = xstrndup(f[5].text, f[5].len);
        if (count > 6 && f[6].len)
            user->shell = xstrndup(f[6].text, f[6].len);
        return true;
    }
    return false;
}

static bool find_group(const char *group, const char *name, gid_t *ret_gid)
{
    struct piece f[FIELDS_MAX];
    size_t count;
    for (const char *at = group ? group : ""; (count = next_line(&at, f));) {
        uint32_t gid;
        if (count >= 3 && piece_is(&f[0], name) && parse_id(&f[2], &gid)) {
            *ret_gid = gid;
            return true;
        }
    }
    return name_parse_id(name, ret_gid);
}

static bool lists_member(const struct piece *members, const char *name)
{
    const char *end = members->text + members->len;
    for (const char *at = members->text; at <= end;) {
        const char *comma = at < end ? memchr(at, ',', (size_t)(end - at)) : NULL;
        struct piece one = {at, (size_t)((comma ? comma : end) - at)};
        if (one.len && piece_is(&one, name))
            return true;
        if (!comma)
            break;
        at = comma + 1;
    }
    return false;
}

static void add_supplementary(const char *group, struct user *user)
{
    struct piece f[FIELDS_MAX];
    size_t count;
    for (const char *at = group ? group : ""; (count = next_line(&at, f));) {
        uint32_t gid;
        if (count < 4 || !parse_id(&f[2], &gid) || gid == user->gid || !lists_member(&f[3], user->name))
            continue;
        if (user->group_count < AGENT_GROUPS_MAX)
            user->groups[user->group_count++] = gid;
    }
}

static int resolve(const char *user_name, const char *group_name, const char *passwd, const char *group, struct user *user,
                   struct err *e)
{
    uint32_t id;
    bool found = find_passwd(passwd, user_name, NULL, user);
    if (!found && name_parse_id(user_name, &id)) {
        user->uid = id;
        (void)find_passwd(passwd, NULL, &id, user);
        found = true; /* a number needs no entry */
    }
    if (!found && !strcmp(user_name, "root")) /* an image without a passwd file still has root */
        found = true;
    if (!found)
        return err_set(e, ERR_INVALID, "there is no user '%s' in this image", user_name);
    if (!user->name)
        user->name = xstrdup(user_name);
    if (!user->home)
        user->home = xstrdup(user->uid ? "/" : "/root");
    if (!user->shell)
        user->shell = xstrdup("/bin/sh");
    if (!group_name)
        add_supplementary(group, user);
    else if (!find_group(group, group_name, &user->gid))
        return err_set(e, ERR_INVALID, "there is no group '%s' in this image", group_name);
    return 0;
}

int users_resolve(const char *spec, const char *passwd, const char *group, struct user *ret_user, struct err *e)
{
    auto_free char *user_name = xstrdup(spec && *spec ? spec : "root");
    char *group_name = strchr(user_name, ':');
    if (group_name)
        *group_name++ = 0;
    if (!*user_name || (group_name && !*group_name))
        return err_set(e, ERR_INVALID, "'%s' names no user: give name, uid, name:group or uid:gid", spec ? spec : "");
    struct user user = {0};
    if (resolve(user_name, group_name, passwd, group, &user, e)) {
        user_done(&user);
        return -1;
    }
    *ret_user = user;
    return 0;
}

void user_done(struct user *user)
{
    if (!user)
        return;
    free(user->name);
    free(user->home);
    free(user->shell);
    *user = (struct user){0};
}
