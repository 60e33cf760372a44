/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/config.h"

#include "unit.h"

static int parse(struct config *config, const char *text, struct err *e)
{
    return config_parse(config, "x.yaml", text, strlen(text), e);
}

static void test_parse_takes_every_key(void **state)
{
    (void)state;
    struct config config;
    struct err e = ERR_INIT;
    config_init(&config);
    assert_string_equal(config.accel, "auto");
    assert_int_equal(config.max_disk_mb, 20480);
    assert_null(config.host);
    const char *text =
        "accel: kvm\nbackend: qemu\ndefault_cpus: 2\ndefault_memory_mb: 1024\ndefault_disk_mb: 100\nmax_disk_mb: 200\n"
        "image_store_max_gb: 3\nhost: 0.0.0.0\nkernel: /k\nport: 1\ntoken: secret\nallowed_origins: [a, \"b c\"]\n"
        "custom_images:\n  tools: debian:bookworm+git\n  mine: 'tar:/x.tar'\n";
    assert_int_equal(parse(&config, text, &e), 0);
    assert_string_equal(config.accel, "kvm");
    assert_int_equal(config.default_cpus, 2);
    assert_int_equal(config.default_disk_mb, 100);
    assert_int_equal(config.image_store_max_gb, 3);
    assert_string_equal(config.host, "0.0.0.0");
    assert_string_equal(config.kernel, "/k");
    assert_null(config.kernel_modules);
    assert_string_equal(config.token, "secret");
    assert_int_equal(config.allowed_origins.len, 2);
    assert_string_equal(config.allowed_origins.items[1], "b c");
    assert_int_equal(config.custom_images_len, 2);
    assert_string_equal(config.custom_images[1].name, "mine");
    assert_string_equal(config.custom_images[1].source, "tar:/x.tar");
    config_done(&config);
}

static void test_parse_says_where_and_what(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"", "x.yaml: the file is empty"},
        {"# only a comment\n", "the file is empty"},
        {"- a\n", "x.yaml:1:1: the file must be a map"},
        {"accel: [\n", "x.yaml:2:1: "},
        {"accel: auto\n\taccel: kvm\n", "x.yaml:2:"},
        {"accell: auto\n", "x.yaml:1:1: unknown key 'accell' (did you mean accel?)"},
        {"port: 1\nzzzzzzzzzzzz: 2\n", "x.yaml:2:1: unknown key 'zzzzzzzzzzzz'"},
        {"sandbox:\n  port: 1\n", "legacy wrapped shape"},
        {"port: many\n", "x.yaml:1:7: port is not a number from 0 to 65535; write for example: port: 49134"},
        {"port: -1\n", "port is not a number"},
        {"port: 65536\n", "port is not a number"},
        {"port: [1]\n", "port is not a number"},
        {"port: 1\nport: 2\n", "x.yaml:2:1: port is given twice"},
        {"default_cpus: 0\n", "default_cpus is not a number from 1"},
        {"accel: xen\n", "accel is not one of auto, kvm, tcg; write for example: accel: auto"},
        {"token: {a: b}\n", "token is not a text"},
        {"token: \"\"\n", "token is not a text"},
        {"allowed_origins: x\n", "allowed_origins is not a list"},
        {"allowed_origins: [[x]]\n", "allowed_origins is not a list of texts"},
        {"custom_images: x\n", "custom_images is not a map"},
        {"custom_images: {python: 'tar:/x'}\n", "'python' shadows a built-in preset"},
        {"custom_images: {'': 'tar:/x'}\n", "a name must not be empty"},
        {"custom_images: {a: }\n", "the source must be a text"},
        {"custom_images: {a: [b]}\n", "the source must be a text"},
        {"default_disk_mb: 300\nmax_disk_mb: 200\n", "default_disk_mb 300 is above max_disk_mb 200"},
        {"token: \"a\\0b\"\n", "token is not a text"},
        {"\xff\xfe\x00", "x.yaml"},
        {"? [a]\n: b\n", "a key must be a plain word"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct config config;
        struct err e = ERR_INIT;
        config_init(&config);
        if (parse(&config, cases[i].text, &e) == 0)
            fail_msg("'%s' was taken", cases[i].text);
        if (!strstr(e.text, cases[i].message))
            fail_msg("'%s' gives '%s', not '%s'", cases[i].text, e.text, cases[i].message);
        assert_int_equal(e.code, ERR_USAGE);
        assert_int_equal(config.port, 49134); /* unchanged */
        config_done(&config);
    }
}

static void test_parse_null_is_as_absent(void **state)
{
    (void)state;
    struct config config;
    struct err e = ERR_INIT;
    config_init(&config);
    assert_int_equal(parse(&config, "port: ~\naccel:\ncustom_images: null\n", &e), 0);
    assert_int_equal(config.port, 49134);
    assert_string_equal(config.accel, "auto");
    config_done(&config);
}

static void test_load_named_file_must_be_there(void **state)
{
    (void)state;
    struct config config;
    struct err e = ERR_INIT;
    config_init(&config);
    assert_int_equal(config_load(&config, "/no/such/config.yaml", &e), -1);
    assert_int_equal(e.code, ERR_USAGE);
    assert_non_null(strstr(e.text, "/no/such/config.yaml"));
    config_done(&config);
}

UNIT_MAIN(cmocka_unit_test(test_parse_takes_every_key), cmocka_unit_test(test_parse_says_where_and_what),
          cmocka_unit_test(test_parse_null_is_as_absent), cmocka_unit_test(test_load_named_file_must_be_there))
