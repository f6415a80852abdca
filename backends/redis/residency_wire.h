/* SPDX-License-Identifier: Apache-2.0 */

/*
 * residency_wire: what agents and routers say to each other through Redis, byte by byte. It is the
 * one place where router and kvtier meet, and their border: versioned, and believed by nobody
 * without looking. Numbers are little-endian. No text of a prompt, no token id and no key of a
 * client is ever in it: only hashes that are keyed by the cluster's secret, lengths and counts.
 * Pure; any thread. Everything read points into what was read.
 *
 * Keys ({w}: a worker's name in braces, so that all keys of one worker share a hash slot; fp: the
 * identity fingerprint as 16 hex digits; life: "<epoch, 16 hex digits>-<generation>"):
 *
 *   smv:<fp>:workers      SET      agents (SADD)   names of workers
 *   smv:{w}:meta          HASH     its agent       struct residency_meta, a field each
 *   smv:{w}:lease         STRING   its agent, PX   struct residency_lease, as text
 *   smv:{w}:<life>:p:<n>  STRING   its agent, TTL  page n: RESIDENCY_PAGE_RECORD_COUNT records
 *   smv:{w}:<life>:out    STREAM   its agent, TTL  a change each: id "<sequence>-1", field "b"
 *   smv:{w}:in            STREAM   routers, TTL    some notes each: field "b", residency_note_*
 *   smv:routers           STREAM   routers         loads: field "b"
 *
 * Pages and changes say the same thing in two ways: after the change of sequence s the records in
 * the pages have s's count and digest. One flush of an agent is one MULTI: SETRANGEs, XADD; EXEC.
 */
#ifndef BACKENDS_REDIS_RESIDENCY_WIRE_H
#define BACKENDS_REDIS_RESIDENCY_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/buf.h"
#include "backends/runtime/must_check.h"
#include "backends/runtime/slice.h"

enum {
    RESIDENCY_WIRE_VERSION = 1,
    RESIDENCY_RECORD_BYTES = 12,
    RESIDENCY_PAGE_RECORD_COUNT = 4090, /* a page is just below 48 KiB: one allocation there */
    RESIDENCY_TOKENS_MAX = (1 << 21) - 1,
    RESIDENCY_CHANGE_RECORD_COUNT_MAX = 4096,
    RESIDENCY_KEY_BYTES_MAX = 384,
    RESIDENCY_WORKER_NAME_BYTES_MAX = 256,
    RESIDENCY_TEXT_BYTES_MAX = 256,   /* of a text in meta, NUL included */
    RESIDENCY_NOTE_BYTES_MAX = 16384, /* of one entry of an "in" stream; longer in parts */
    RESIDENCY_LOAD_COUNT_MAX = 1024,
};

/* ---- keys ---- */

/* A life of one report: epoch is drawn by an agent's process for each of its workers and never used
 * again; generation counts how often that process published everything anew. */
struct residency_life {
    uint64_t epoch; /* not 0 */
    uint32_t generation;
};

enum residency_key_kind {
    RESIDENCY_KEY_META,
    RESIDENCY_KEY_LEASE,
    RESIDENCY_KEY_IN,
};

/* Each writes a key with its NUL and returns its length. worker: at most
 * RESIDENCY_WORKER_NAME_BYTES_MAX bytes. */
size_t residency_key_workers(char key[RESIDENCY_KEY_BYTES_MAX], uint64_t fingerprint);
size_t residency_key(char key[RESIDENCY_KEY_BYTES_MAX], const char *worker,
                     enum residency_key_kind kind);
size_t residency_key_page(char key[RESIDENCY_KEY_BYTES_MAX], const char *worker,
                          struct residency_life life, uint32_t page);
size_t residency_key_out(char key[RESIDENCY_KEY_BYTES_MAX], const char *worker,
                         struct residency_life life);
#define RESIDENCY_KEY_ROUTERS "smv:routers"

/* ---- records: what a worker holds ---- */

/* A text block and where it is held: absolute, not a difference. Wire: hash 8, tokens 3, tiers 1
 * (the upper five bits are 0 and ignored). */
struct residency_record {
    uint64_t hash;   /* 0: a free place in a page */
    uint32_t tokens; /* from the start of the prompt to the end of what an engine can find by the
                      * block's end; at most RESIDENCY_TOKENS_MAX */
    uint8_t tiers;   /* bits: 1 HBM, 2 CPU, 4 SSD; 0: no longer held (changes only) */
};

void residency_record_write(uint8_t bytes[RESIDENCY_RECORD_BYTES], struct residency_record record);
struct residency_record residency_record_read(const uint8_t bytes[RESIDENCY_RECORD_BYTES]);

/* What record adds to the digest of a whole, which is the sum over its records modulo 2^64, so that
 * order does not matter and a change costs a subtraction and an addition. 0 where tiers is 0. */
uint64_t residency_record_digest(struct residency_record record);

/* One flush of an agent. */
struct residency_change {
    uint64_t count;  /* records held after it */
    uint64_t digest; /* of them */
    struct slice
        records; /* RESIDENCY_RECORD_BYTES each; at most RESIDENCY_CHANGE_RECORD_COUNT_MAX */
};

/* Appends the field "b" of an "out" entry. -ENOMEM. */
MUST_CHECK int residency_change_write(struct buf *out, const struct residency_change *change);
/* -EPROTO: no change, or one of another version (see README); nothing of it may be used. */
MUST_CHECK int residency_change_read(struct slice bytes, struct residency_change *change);

/* ---- lease: the right to be believed ---- */

struct residency_lease {
    uint64_t fingerprint;
    struct residency_life life;
    uint64_t after_epoch; /* the life before this one, which its agent knows to be over: what begins
                           * so soon behind it is no rival; 0: none is known */
    uint64_t sequence;    /* of the last change; 0: none yet */
    uint32_t page_count;  /* pages that may hold records */
    uint32_t interval_ms; /* until it is renewed */
    bool is_whole; /* false: the agent does not know all yet (it started beside a warm engine),
                      or knows that it missed something; what it claims is still true */
    bool has_load;
    uint32_t running; /* requests, as the engine says */
    uint32_t waiting;
    uint32_t cpu_queue_ms; /* what a load from CPU memory that is asked for now would wait */
    uint32_t ssd_queue_ms; /* the same of one from SSD */
};

/* As text: "v=1 fp=... life=... seq=... pages=... ms=... whole=1 after=... running=3 waiting=0
 * cpuq=2 ssdq=40". No life before, and a queue that is empty, are not said. Appends; the
 * reader ignores words it does not know. -ENOMEM; -EPROTO. */
MUST_CHECK int residency_lease_write(struct buf *out, const struct residency_lease *lease);
MUST_CHECK int residency_lease_read(struct slice text, struct residency_lease *lease);

/* ---- meta: who a worker is ---- */

struct residency_meta {
    uint64_t fingerprint;
    char url[RESIDENCY_TEXT_BYTES_MAX];    /* where routers reach it: "http://host:port", "#rank" */
    char engine[RESIDENCY_TEXT_BYTES_MAX]; /* "vllm", ...; "" not known */
    char node[RESIDENCY_TEXT_BYTES_MAX];   /* host name of the agent, for people */
    char version[RESIDENCY_TEXT_BYTES_MAX]; /* of the agent */
    uint64_t epoch;          /* of the agent's process; another one: two agents, or it
                                restarted */
    uint32_t block_tokens;   /* engine block; 0: not known yet, then no anchors can be named */
    uint64_t cache_tokens;   /* that its HBM holds; 0: not known */
    bool has_anchors;        /* the engine says them itself (connector): routers need not ask */
    uint32_t text_depth_max; /* blocks of a prompt that it can take in */
    /* What a load costs, and what it spares. 0: not known, as from an agent without tiers, or one
     * that has not measured them yet. */
    uint32_t bytes_per_token;      /* of its engine's cache */
    uint32_t prefill_tokens_per_s; /* that its engine computes */
    uint32_t cpu_start_us;         /* of any load from CPU memory, the engine's part included */
    uint32_t ssd_start_us;         /* the same of one from SSD */
    uint64_t cpu_bytes_per_s;      /* from CPU memory into the engine's */
    uint64_t ssd_bytes_per_s;      /* from SSD into the engine's */
};

enum { RESIDENCY_META_FIELD_COUNT = 16 };

/* One field and its value, as text; index < RESIDENCY_META_FIELD_COUNT. Appends. -ENOMEM. */
MUST_CHECK int residency_meta_write_field(const struct residency_meta *meta, size_t index,
                                          const char **field, struct buf *value);
/* Takes one field; unknown fields are ignored. -EPROTO: the value is none of that field. */
MUST_CHECK int residency_meta_read_field(struct residency_meta *meta, struct slice field,
                                         struct slice value);
/* After all fields: -EPROTO where one is missing without which a worker cannot be used. */
MUST_CHECK int residency_meta_check(const struct residency_meta *meta);

/* ---- notes: what routers tell an agent ---- */

enum residency_note_kind {
    RESIDENCY_NOTE_TEXT = 1, /* blocks that follow start: a part of a long record */
    RESIDENCY_NOTE_ROUTED,   /* blocks that follow start, the last part of attempt's prompt */
    RESIDENCY_NOTE_ANSWERED, /* the same for attempt's answer, behind its prompt */
    RESIDENCY_NOTE_ANCHOR,   /* how many tokens attempt's prompt became */
    RESIDENCY_NOTE_DRAIN,    /* reserved: read over */
    RESIDENCY_NOTE_PREFETCH, /* blocks behind start that a request will soon want nearer: a hint,
                              * which an agent may do nothing about */
};

struct residency_note {
    enum residency_note_kind kind;
    uint64_t attempt;   /* ROUTED, ANSWERED, ANCHOR: keyed digest of the attempt's id; not 0 */
    uint32_t within_ms; /* PREFETCH: from the note's arrival; later it is of no use any more */
    /* TEXT, ROUTED, ANSWERED, PREFETCH */
    uint64_t start;      /* hash of the block they follow; 0: the beginning */
    struct slice blocks; /* residency_note_block() */
    size_t block_count;
    /* ANCHOR, ANSWERED. Of an answer: of prompt and answer together, and prompt_block is the
     * prompt's last, because nobody names the answer's. */
    bool has_anchor;     /* ANSWERED may come without */
    uint64_t last_block; /* .low of the name of the prompt's last full token block; 0: none is; in
                          * ANSWERED: the engine has told its agent of the prompt itself */
    uint32_t token_count;
    uint32_t tail_tokens;   /* of these behind the text: what the template adds for the answer */
    uint32_t cached_tokens; /* the engine reported; UINT32_MAX: not known */
};

struct residency_note_block {
    uint64_t hash;
    uint32_t bytes; /* its own length, 1..512 */
};

/* Begins an entry: version, fingerprint, a router's id. Notes follow. -ENOMEM. */
MUST_CHECK int residency_notes_begin(struct buf *out, uint64_t fingerprint, uint64_t router);
enum {
    RESIDENCY_NOTES_HEAD_BYTES = 24,
    RESIDENCY_NOTE_FIXED_BYTES_MAX = 64, /* of a note, all but its blocks */
    RESIDENCY_NOTE_BLOCK_BYTES = 10,
};
/* Appends a note with its blocks (note->blocks is not looked at). -ENOMEM; -EMSGSIZE: longer than
 * RESIDENCY_NOTE_BYTES_MAX with what is there; nothing is appended then. */
MUST_CHECK int residency_note_write(struct buf *out, const struct residency_note *note,
                                    const struct residency_note_block *blocks, size_t block_count);

struct residency_notes { /* a cursor over an entry */
    uint64_t fingerprint;
    uint64_t router;
    struct slice rest;
    uint32_t skipped_count; /* notes of kinds that are not known, or not as they should be */
};

/* -EPROTO: no entry, or one of another version. */
MUST_CHECK int residency_notes_open(struct residency_notes *notes, struct slice bytes);
/* False at the end, or where the rest makes no sense (counted as skipped). */
bool residency_notes_next(struct residency_notes *notes, struct residency_note *note);
struct residency_note_block residency_note_block(const struct residency_note *note, size_t index);

/* ---- loads: what routers tell each other ---- */

struct residency_load {
    uint64_t worker; /* name_hash of the worker: the same on every router */
    uint32_t in_flight;
    uint32_t queued_tokens;
    uint32_t decoding;
};

/* All that a router has in flight now: workers that are not in it have 0. -ENOMEM. */
MUST_CHECK int residency_loads_write(struct buf *out, uint64_t router,
                                     const struct residency_load *loads, size_t count);
/* -EPROTO. residency_loads_at(): index < *count. */
MUST_CHECK int residency_loads_read(struct slice bytes, uint64_t *router, size_t *count);
struct residency_load residency_loads_at(struct slice bytes, size_t index);

#endif
