/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Any runs under a head and a digest that are right (a flipped bit there is refused, and teaches
 * nothing): what is taken in is within the limits and in order, a second load changes nothing, and
 * what is saved of it is taken in again.
 */
#include "kvtier/identity/alignment_state.h"

#include "tests/fuzz/fuzz_input.h"

#include <assert.h>
#include <string.h>

enum { IDENTITY = 1, BYTES_MAX = 1 << 20, HEAD_BYTES = 16 };

static void make_alignment(struct alignment *alignment, const uint8_t *secret)
{
    int status = alignment_init(alignment, (struct alignment_config){.secret = secret,
                                                                     .token_nodes_max = 64,
                                                                     .text_nodes_max = 24,
                                                                     .depth_max = 16,
                                                                     .attempts_max = 4,
                                                                     .wait_ms = 1000,
                                                                     .groups = 1});

    assert(status == 0);
}

static void append_u64(struct buf *buf, uint64_t value)
{
    uint8_t bytes[8];
    int status;

    for (unsigned i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(value >> 8 * i);
    status = buf_append(buf, slice_of(bytes, sizeof bytes));
    assert(status == 0);
}

static void check(const struct alignment *alignment)
{
    assert(alignment->text.node_count <= alignment->config.text_nodes_max);
    for (uint32_t i = 1; i <= alignment->config.text_nodes_max; i++) {
        const struct text_node *text = text_chain_at(&alignment->text, i);
        const struct aligned *aligned = &alignment->aligned[i];

        if (text->hash == 0 || !aligned->is_mapped)
            continue;
        assert(aligned->depth <= alignment->config.depth_max);
        assert((aligned->depth == 0) == (aligned->block == 0));
        assert(aligned->claimed == 0); /* no engine has said anything */
        if (text->parent != 0 && alignment->aligned[text->parent].is_mapped)
            assert(alignment->aligned[text->parent].token_end <= aligned->token_end);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t secret[DIGEST_SECRET_BYTES];
    struct alignment alignment, other;
    struct buf state, again;
    int status;

    if (size > BYTES_MAX - 100)
        return 0;
    digest_secret_derive(secret, "fuzz", 4);
    make_alignment(&alignment, secret);
    make_alignment(&other, secret);
    buf_init(&state, BYTES_MAX);
    buf_init(&again, BYTES_MAX);
    append_u64(&state, 1); /* version */
    append_u64(&state, IDENTITY);
    status = buf_append(&state, slice_of(data, size));
    assert(status == 0);
    append_u64(&state,
               digest_64(secret, DIGEST_ALIGNMENT, buf_slice(&state).ptr, HEAD_BYTES + size));

    if (alignment_load(&alignment, IDENTITY, buf_slice(&state)) == 0) {
        uint32_t count = alignment.text.node_count;

        alignment_flush(&alignment, 0);
        check(&alignment);
        status = alignment_save(&alignment, IDENTITY, &again);
        assert(status == 0);
        status = alignment_load(&alignment, IDENTITY, buf_slice(&again));
        assert(status == 0 && alignment.text.node_count == count);
        status = alignment_load(&other, IDENTITY, buf_slice(&again));
        assert(status == 0 && other.text.node_count <= count);
        check(&other);
    } else {
        assert(alignment.text.node_count == 0);
    }
    buf_release(&state);
    buf_release(&again);
    alignment_release(&alignment);
    alignment_release(&other);
    return 0;
}
