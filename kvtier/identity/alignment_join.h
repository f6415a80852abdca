/* SPDX-License-Identifier: Apache-2.0 */

/*
 * alignment_join: the part of alignment that learns: what one attempt says about where its text
 * blocks end in tokens; and what it shares with alignment's other parts. Included by alignment's
 * own sources only; as pure as alignment.
 */
#ifndef KVTIER_IDENTITY_ALIGNMENT_JOIN_H
#define KVTIER_IDENTITY_ALIGNMENT_JOIN_H

#include <stdbool.h>
#include <stdint.h>

#include "kvtier/identity/alignment.h"

enum { ALIGNMENT_FLIPS_MAX = 3 }; /* a block that flipped more often is not claimed */

/* True: the attempt is done with, joined or not (counted). False: a part of it is still missing. */
bool alignment_join(struct alignment *alignment, const struct attempt *attempt);

/* Puts a text block into the list of node, or into none while no block is full (node is a root). */
void alignment_attach(struct alignment *alignment, uint32_t index, const struct token_node *node);

/* The same by name, for a token block that need not be known. False: out of memory; the text block
 * is not mapped now, claims nothing and may be mapped again. */
bool alignment_attach_name(struct alignment *alignment, uint32_t index, uint64_t block,
                           uint32_t depth);

/* A text block ends in a token block at depth, the one before it at parent_depth. */
void alignment_note_span(struct alignment *alignment, uint32_t depth, uint32_t parent_depth);

/* What changes while a save in slices is under way: a text block is forgotten; blocks of
 * alignment's path, the first so many of it, are mapped otherwise from changed on. */
void alignment_save_note_forgotten(struct alignment *alignment, uint32_t index);
void alignment_save_note_path(struct alignment *alignment, uint32_t changed, uint32_t path_count);

/* The next flush looks at the claim on this text block. */
void alignment_mark_stale(struct alignment *alignment, uint32_t index);

#endif
