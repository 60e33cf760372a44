/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve.h"

#include "base/check.h"
#include "base/log.h"
#include "daemon/stop.h"
#include "engine/server.h"

#include <stdlib.h>
#include <sys/resource.h>

#define FDS_WANTED 65536u

struct serve {
    uv_loop_t loop;
    struct engine *engine;
    struct stop *stop;
};

static void end(struct serve *serve)
{
    engine_free(serve->engine);
    stop_free(serve->stop);
    serve->engine = NULL;
    serve->stop = NULL;
}

static void on_stop(void *context, const char *why)
{
    log_info("stopping: %s", why);
    end(context);
}

/* Connections are descriptors; the usual soft limit of 1024 is below our own limits. */
static void raise_fd_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit))
        return;
    rlim_t wanted = limit.rlim_max < FDS_WANTED ? limit.rlim_max : FDS_WANTED;
    if (limit.rlim_cur >= wanted)
        return;
    limit.rlim_cur = wanted;
    if (setrlimit(RLIMIT_NOFILE, &limit))
        log_debug("the limit of descriptors stays at %llu, ignoring", (unsigned long long)limit.rlim_cur);
}

int serve_run(const struct config *config, void (*on_ready)(const char *host, uint16_t port), struct err *e)
{
    struct serve serve = {0};
    uint16_t port = 0;
    struct server_config server = {
        .host = config->host,
        .port = (uint16_t)config->port,
        .token = config->token,
        .allowed_origins = config->allowed_origins.items,
        .otlp_endpoint = getenv("OTEL_EXPORTER_OTLP_ENDPOINT"),
    };
    if (server.otlp_endpoint && !*server.otlp_endpoint)
        server.otlp_endpoint = NULL;
    raise_fd_limit();
    CHECK(uv_loop_init(&serve.loop) == 0);
    serve.stop = stop_watch(&serve.loop, on_stop, &serve, e);
    serve.engine = serve.stop ? server_new(&serve.loop, &server, &port, e) : NULL;
    if (serve.engine)
        on_ready(config->host ? config->host : "127.0.0.1", port);
    else
        end(&serve);
    uv_run(&serve.loop, UV_RUN_DEFAULT);
    CHECK(uv_loop_close(&serve.loop) == 0);
    return err_is_set(e) ? -1 : 0;
}
