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

/* sandbox */
#define LINK_PENDING_MAX (32 * MIB) /* frames queued to one guest: all windows and a few large requests */
#define BOOT_MS_MAX 60000u          /* from the start of the machine's process to its identity being set */

/* cli */
#define RUN_SCRIPT_MAX (16 * MIB) /* a script of `run --lang` */
