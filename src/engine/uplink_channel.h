/* SPDX-License-Identifier: Apache-2.0 */
/* Our ends of channels of a real engine: a socket each. */
#pragma once

#include "engine/channel.h"
#include "engine/ws.h"

/* target: the engine's own, with the path of its URL; the channel's path is made from it. */
struct channel_reader *uplink_reader_open(struct ws_service *ws, const struct ws_target *target, const struct channel_ref *ref,
                                          const struct channel_reader_events *events, void *context, bool paused, struct err *e);
struct channel_writer *uplink_writer_open(struct ws_service *ws, const struct ws_target *target, const struct channel_ref *ref,
                                          const struct channel_writer_events *events, void *context, struct err *e);
