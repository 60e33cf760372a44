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
#define ENGINE_SPANS_MAX 2048                    /* spans that wait to be exported; beyond it dropped and counted */
#define ENGINE_SPANS_BATCH 256                   /* spans of one export */
#define ENGINE_RESOLVE_MAX (16 * KIB)            /* answer of the resolver child */
#define CONFIG_LIST_MAX 256                      /* items of one list in the configuration */
/* imager: an archive becomes an image */
#define IMAGE_BYTES_MAX (64 * GIB)         /* the finished ext4 file */
#define IMAGE_FILE_BYTES_MAX (1024 * GIB)  /* one file's size with its holes */
#define IMAGE_ENTRIES_MAX 1000000          /* names in one image */
#define IMAGE_NAMES_BYTES_MAX (24 * MIB)   /* all names together, held in memory */
#define IMAGE_DEPTH_MAX 256                /* folders within folders */
#define IMAGE_PATH_MAX 4096                /* one entry's path in the archive */
#define IMAGE_NAME_MAX 255                 /* one component (ext4) */
#define IMAGE_SYMLINK_MAX 4095             /* a link's target (ext4: less than a block) */
#define IMAGE_SYMLINK_HOPS_MAX 40          /* links followed to find an entry's parent, as Linux does */
#define IMAGE_FILE_LINKS_MAX 65000         /* names of one file (ext4) */
#define IMAGE_XATTRS_BYTES_MAX (64 * KIB)  /* extended attributes of one entry; ext4 takes about 4,000 bytes */
#define IMAGE_TRAILER_BYTES_MAX (64 * MIB) /* bytes after the archive's end mark */
#define IMAGE_PIECE_BYTES (1 * MIB)        /* file content gathered before one write */
#define IMAGE_CACHE_BLOCKS 512             /* metadata blocks kept before they are written */

/* image */
#define KERNEL_MODULE_BYTES_MAX (64 * MIB) /* one module, or the agent program */
#define INITRAMFS_BYTES_MAX (128 * MIB)
#define VMLINUX_BYTES_MAX (256 * MIB) /* a kernel, unpacked */

/* sandbox */
#define LINK_PENDING_MAX (32 * MIB) /* frames queued to one guest: all windows and a few large requests */
#define BOOT_MS_MAX 60000u          /* from the start of the machine's process to its identity being set */

/* cli */
#define RUN_SCRIPT_MAX (16 * MIB) /* a script of `run --lang` */
/* jail */
#define JAIL_FDS_MAX 64 /* descriptors that one child is given */

/* vmm */
#define VM_CONSOLE_MAX (64 * KIB)     /* kept end of a guest's console */
#define VM_STDERR_MAX (4 * KIB)       /* kept end of what the machine's process says about itself */
#define VM_DRAIN_MAX (1 * MIB)        /* bytes read per descriptor and turn of the loop */
#define VM_CPUS_MAX 64                /* of one machine */
#define VM_MEMORY_MB_MAX (1024 * KIB) /* of one machine */
#define VM_CACHE_FILE_MAX (4 * KIB)   /* the kept result of the KVM probe, or of the TSC measurement */
#define QMP_LINE_MAX (256 * KIB)      /* one message of the control channel */
#define QMP_PENDING_MAX 16            /* commands without their answer yet */
#define QMP_NAME_MAX 64               /* the name of an event or an error class */

/* imager: what a guest gives back */
#define UNPACK_NAMES_MAX (64 * MIB) /* bytes of their names together */
#define UNPACK_ENTRIES_MAX 1000000u /* files of one `run --out` */
#define PACK_DEPTH_MAX 512u         /* folders below each other of what is packed */
#define RUN_OUT_MARGIN (64 * MIB)   /* headers and padding of the archive of `run --out` */
#define RESULT_OUTPUT_MAX (1 * MIB) /* of each stream in `run --json` */
/* agent: the guest's first process and its link child */
#define AGENT_OUT_HIGH (256 * KIB)        /* queued for the port: above this no pipe is read */
#define AGENT_OUT_STOP (1 * MIB)          /* queued for the port: above this the port is not read either */
#define AGENT_OUT_MAX (8 * MIB)           /* queued for the port: the link gives up */
#define AGENT_DRAINS_MAX 1024             /* pipes of ended programs that orphans still hold; the oldest is closed */
#define AGENT_SPARE_CGROUPS_MAX 4         /* control groups kept ready */
#define AGENT_LINGERING_MAX 4096          /* control groups that orphans still live in */
#define AGENT_GROUPS_MAX 256              /* supplementary groups of a user */
#define AGENT_FAILURE_TEXT_MAX 400        /* prose of a child that could not start */
#define AGENT_MEMORY_RESERVE (24 * MIB)   /* kept from programs, for the kernel and the agent */
#define AGENT_PIDS_RESERVE 128            /* processes kept from programs */
#define AGENT_PIDS_MAX 4096               /* processes of all programs: what a deadline can kill within a second */
#define AGENT_NOFILE_MAX 65536            /* RLIMIT_NOFILE of every program */
#define AGENT_TTY_GRACE_MS 50             /* for the last bytes of a terminal that an orphan still holds */
#define AGENT_STOP_GRACE_MS 200           /* between SIGTERM and SIGKILL at shutdown */
#define AGENT_DEVICE_WAIT_MS 10000        /* for a disk or the port to appear at boot */
#define AGENT_LAST_WORDS_MS 2000          /* for the last frame to leave before the machine ends */
#define AGENT_TAR_PATH_MAX 4096           /* a path or link target in a tar, with its NUL */
#define AGENT_TAR_EXTENSION_MAX (1 * MIB) /* a pax or long-name record in a tar */
#define AGENT_TAR_DEPTH_MAX 256           /* folders inside folders that are packed */
#define AGENT_TAR_LINKS_MAX 100000        /* files with several names that stay one file when packed */
