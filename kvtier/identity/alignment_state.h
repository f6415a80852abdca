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
 * Takes in what was saved, beside what is known, which is not changed; what has no room any more is
 * left out. -EPROTO: of another version, identity or secret, or damaged; then nothing is taken in.
 */
MUST_CHECK int alignment_load(struct alignment *alignment, uint64_t identity, struct slice bytes);

#endif
