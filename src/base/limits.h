/* SPDX-License-Identifier: Apache-2.0 */
/* Every named maximum of the program. A buffer, queue, list or message that a peer can grow has its limit here and nowhere
 * else; tools/check-limits fails on one that nothing uses. Sizes in bytes unless the name says otherwise. */
#pragma once

#define KIB 1024u
#define MIB (1024u * 1024u)
#define GIB (1024ull * 1024ull * 1024ull)

/* base */
#define LOG_LINE_MAX 2048
#define SMALL_FILE_MAX (1 * MIB) /* a configuration or /proc file read whole */

/* wire: host and guest */
#define WIRE_FRAME_MAX (32 * KIB)  /* header and body; the guest kernel writes at most this much at once */
#define WIRE_REQUEST_MAX (4 * MIB) /* a request's body, assembled from its pieces */
#define WIRE_REPLY_MAX (4 * MIB)   /* a reply's body, assembled */
#define WIRE_WINDOW (256 * KIB)    /* bytes in flight per stream, channel and direction without a credit */
#define WIRE_STREAMS_MAX 64        /* open streams on one link */
#define WIRE_LIST_MAX 4096         /* items of one repeated field (argv, env) */

/* engine: the iii bus */
#define ENGINE_MESSAGE_MAX (16 * MIB)            /* one message on a worker socket; beyond it close code 1009 */
#define ENGINE_JSON_DEPTH_MAX 1024               /* nesting of one message */
#define ENGINE_ID_MAX 512                        /* a function id, trigger type or name as sent by a peer */
#define ENGINE_CONNECTIONS_MAX 1024              /* sockets of one embedded engine; beyond it HTTP 503 */
#define ENGINE_HEADERS_MAX (16 * KIB)            /* request head of one upgrade */
#define ENGINE_QUEUE_MAX (128 * MIB)             /* unsent bytes of one connection; beyond it close code 1008 */
#define ENGINE_QUEUE_PAUSE (4 * MIB)             /* unsent bytes at which its own requests are no longer read */
#define ENGINE_HELD_MAX (256 * MIB)              /* unsent and half-received bytes of all connections: the largest is closed */
#define ENGINE_CALLS_MAX 32768                   /* open calls of one engine */
#define ENGINE_CALLS_PER_CONNECTION_MAX 4096     /* open calls of one caller */
#define ENGINE_FUNCTIONS_PER_CONNECTION_MAX 4096 /* functions of one worker */
#define ENGINE_TRIGGERS_PER_CONNECTION_MAX 1024  /* triggers, and trigger types, of one worker */
#define ENGINE_REGISTERED_MAX (8 * MIB)          /* bytes of all that one worker registered (schemas, metadata) */
#define ENGINE_INFO_IDS_MAX 32                   /* ids of one engine::functions::info */
#define ENGINE_CHANNELS_MAX 4096                 /* channels of one engine */
#define ENGINE_CHANNELS_PER_CONNECTION_MAX 512   /* channels that one worker made and that still exist */
#define ENGINE_CHANNEL_MESSAGES_DEFAULT 64       /* messages between the ends of a channel */
#define ENGINE_CHANNEL_MESSAGES_MAX 1024         /* the most a caller may ask for */
#define ENGINE_CHANNEL_BYTES_MAX (2 * MIB)       /* bytes between the ends of a channel */
#define ENGINE_CHANNEL_BYTES_SCARCE (64 * KIB)   /* the same, once ENGINE_CHANNELS_HELD_MAX is passed */
#define ENGINE_CHANNELS_HELD_MAX (128 * MIB)     /* bytes between the ends of all channels */
#define ENGINE_CHANNEL_PIECE (64 * KIB)          /* binary messages that we write */
#define ENGINE_CHANNEL_TEXT_MAX (64 * KIB)       /* a text message that one of our own readers takes */
#define ENGINE_NAME_MAX 280                      /* a worker's name and description, in characters */
#define ENGINE_OTEL_MESSAGE_MAX (4 * MIB)        /* a telemetry message, which is discarded */
#define ENGINE_SPANS_MAX 2048                    /* spans that wait to be exported; beyond it dropped and counted */
#define ENGINE_SPANS_BATCH 256                   /* spans of one export */
#define ENGINE_RESOLVE_MAX (16 * KIB)            /* answer of the resolver child */
#define CONFIG_LIST_MAX 256                      /* items of one list in the configuration */
