/* SPDX-License-Identifier: Apache-2.0 */

/*
 * kv_event_codec: reads what an engine publishes about its KV cache, as vLLM does
 * (vllm/distributed/kv_events.py) and SGLang after it (srt/disaggregation/kv_events.py). It knows
 * no socket, keeps no state from one message to the next and believes nothing: what blocks mean
 * is for others. Everything given out points into the message. Pure: no allocation; any thread.
 */
#ifndef BACKENDS_KVEVENTS_KV_EVENT_CODEC_H
#define BACKENDS_KVEVENTS_KV_EVENT_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/kvevents/msgpack_reader.h"
#include "backends/runtime/must_check.h"
#include "backends/runtime/slice.h"

enum {
    KV_EVENT_SEQUENCE_BYTES = 8,
    KV_EVENT_PAYLOAD_BYTES_MAX = 64 << 20, /* a batch of ten million token ids is not one */
};

/* One message of the engine: its frames, told apart. */
struct kv_event_message {
    struct slice topic; /* empty in replies of older engines, which leave it out */
    uint64_t sequence;  /* 0 for the first message of an engine process, then one more each */
    struct slice payload;
};

/* Values of the payload that follow each other, all of the kind its field says. A copy is a
 * cursor of its own. */
struct kv_event_list {
    struct msgpack_reader values;
    size_t count; /* of those left */
};

enum kv_event_type {
    KV_EVENT_STORED,  /* BlockStored */
    KV_EVENT_REMOVED, /* BlockRemoved: one copy of each block; others may still be held */
    KV_EVENT_CLEARED, /* AllBlocksCleared: does not say of which medium */
};

/*
 * What was left out or said as nil is as the comments say. Whether token_ids are hashes.count
 * blocks of block_size is not looked at: a lower tier announces blocks without their tokens, a
 * sliding window only some of its blocks. Texts are the engine's: any bytes, any length.
 */
struct kv_event {
    enum kv_event_type type;
    struct kv_event_list hashes;    /* kv_event_next_hash(); REMOVED, STORED */
    struct slice medium;            /* "gpu" if not said; compare with slice_eq_nocase() */
    int64_t group;                  /* of a hybrid model's cache groups; -1 */
    bool has_parent;                /* STORED, as all that follows; false: the first of its chain */
    uint64_t parent;                /* hash of the block before the first */
    struct kv_event_list token_ids; /* kv_event_take_tokens(): of all blocks, in their order */
    uint32_t block_size;            /* in tokens; 0 */
    int64_t lora_id;                /* -1 */
    struct slice lora_name;         /* empty */
    struct slice cache_salt;        /* of its chain, where it is not among the extra keys; empty */
    struct kv_event_list extra_keys; /* kv_event_next_extra_keys(), one per block; none */
    struct slice spec_kind;          /* full_attention, sliding_window, mamba, ...; empty */
    int64_t sliding_window;          /* in tokens; -1 */
};

/* What was passed over, of one batch. Not errors: engines grow fields and events. */
struct kv_event_skipped {
    uint32_t unknown_event_count;   /* a tag we do not know */
    uint32_t malformed_event_count; /* a known tag whose fields are missing or of a wrong type */
    uint32_t unknown_field_count;   /* of the batch and of known events */
};

struct kv_event_batch {
    double at_s;  /* the engine's clock, seconds since 1970; 0 if not said */
    int64_t rank; /* data-parallel rank; -1 if not said */
    struct kv_event_skipped skipped;
    struct kv_event_list events; /* not read yet */
};

/*
 * The frames of a published message: topic, sequence (8 bytes, big-endian), payload. -EPROTO: there
 * are more or fewer, or the sequence has another length.
 */
MUST_CHECK int kv_event_message_read(const struct slice *frames, size_t frame_count,
                                     struct kv_event_message *message);

/*
 * The frames of one reply to a replay request, as a DEALER socket gets them: an empty frame, then
 * topic (vLLM since June 2026), sequence, payload. Returns 0; 1: the replay has ended (all that
 * engines agree on is that the last payload is empty; vLLM also says sequence 2^64 - 1); -EPROTO.
 */
MUST_CHECK int kv_event_reply_read(const struct slice *frames, size_t frame_count,
                                   struct kv_event_message *message);

/* The second frame of a replay request, behind an empty one: every message from sequence on. */
void kv_event_request_write(uint64_t sequence, uint8_t frame[KV_EVENT_SEQUENCE_BYTES]);

/*
 * Opens a payload, which stays borrowed: a MessagePack array [at, events, rank, ...], or a map of
 * ts, events, data_parallel_rank. All of it is walked, so no event comes out of a payload that
 * is cut or broken anywhere. -EINVAL: it is, or it is no batch. -EMSGSIZE: too long.
 */
MUST_CHECK int kv_event_batch_open(struct kv_event_batch *batch, struct slice payload);

/*
 * The next event that is understood; false at the end, when batch->skipped is complete. An event is
 * an array [tag, field, ...] in vLLM's order, trailing ones left out (before June 2026), or a map
 * of `type` and fields by name, those with defaults left out.
 */
bool kv_event_next(struct kv_event_batch *batch, struct kv_event *event);

/*
 * Takes a block's hash from the front. It is an alias, to be compared with others of the same
 * engine and nothing else: an integer is taken as it is (a negative one as two's complement); of a
 * byte string the last eight bytes count, big-endian, a shorter one as if zeros led it. This is
 * what vLLM itself makes of its 32 bytes unless VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES is 0, so both
 * spellings of a block have one alias.
 */
bool kv_event_next_hash(struct kv_event_list *hashes, uint64_t *hash);

/* Takes up to token_count_max token ids from the front. Returns how many; 0 when none are left. */
size_t kv_event_take_tokens(struct kv_event_list *token_ids, uint32_t *tokens,
                            size_t token_count_max);

/*
 * Takes from the front what, beside its tokens, went into a block's hash: LoRA name, images, cache
 * salt. As encoded, so the same keys are the same bytes (from one engine); empty: none. They are
 * secrets of the client: not for logs.
 */
bool kv_event_next_extra_keys(struct kv_event_list *extra_keys, struct slice *encoded);

#endif
