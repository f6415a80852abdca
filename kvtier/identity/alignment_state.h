/* SPDX-License-Identifier: Apache-2.0 */

/*
 * alignment_state: what an alignment has learned, as bytes: the text blocks, where each ends in
 * tokens, and the names of these. Not what an engine holds, which only the engine can say: a loaded
 * text block is claimed once its token blocks have shown up. Pure.
 */
#ifndef KVTIER_IDENTITY_ALIGNMENT_STATE_H
#define KVTIER_IDENTITY_ALIGNMENT_STATE_H

#include <stdint.h>

#include "backends/runtime/buf.h"
#include "backends/runtime/must_check.h"
#include "backends/runtime/slice.h"
#include "kvtier/identity/alignment.h"

/*
 * Appends all that is mapped, 24 bytes a text block. identity says what it is of (fingerprint,
 * model): names of other tokens and other text mean nothing. -ENOMEM, -ENOBUFS: out is as before.
 */
MUST_CHECK int alignment_save(struct alignment *alignment, uint64_t identity, struct buf *out);

/*
 * The same in slices, between which the alignment may change: what is in out at the end is true of
 * that moment, but for what was forgotten on the way. begin borrows out until the end; a step looks
 * at some count of blocks. 1: there is more; 0: all is in out, and waits for its seal; -EOVERFLOW:
 * more changed meanwhile than can be kept in mind; -ENOBUFS. Where a step fails, or is the last,
 * the save is over.
 */
MUST_CHECK int alignment_save_begin(struct alignment *alignment, uint64_t identity,
                                    struct buf *out);
MUST_CHECK int alignment_save_step(struct alignment *alignment, uint32_t count);

/* The digest of what out has from begin on, behind it: some milliseconds for a large one, and for
 * any thread. */
MUST_CHECK int alignment_save_seal(const uint8_t *secret, struct buf *out, size_t begin);

/* Ends a save that is under way, if one is; out is as before. */
void alignment_save_abandon(struct alignment *alignment);

/*
 * Takes in what was saved, beside what is known, which is not changed; what has no room any more is
 * left out. -EPROTO: of another version, identity or secret, or damaged; -ENOMEM: then nothing is
 * taken in.
 */
MUST_CHECK int alignment_load(struct alignment *alignment, uint64_t identity, struct slice bytes);

#endif
