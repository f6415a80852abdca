/* SPDX-License-Identifier: Apache-2.0 */

/*
 * tier_sentences: how the tiers beneath the engines are, for people: one sentence a line, each of
 * which stands alone, in the form of `samovar doctor`: "fine", "doubt" or "WRONG", and behind what
 * is not fine what to do. Pure.
 */
#ifndef KVTIER_TIER_SENTENCES_H
#define KVTIER_TIER_SENTENCES_H

#include "backends/runtime/buf.h"
#include "backends/runtime/must_check.h"
#include "kvtier/node_tiers.h"

/* stats: NULL: there are no tiers. socket: where engines come to them. -ENOMEM, -ENOBUFS. */
MUST_CHECK int tier_sentences_write(struct buf *out, const struct node_tiers_stats *stats,
                                    const char *socket);

#endif
