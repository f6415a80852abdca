/* SPDX-License-Identifier: Apache-2.0 */

/*
 * ipc_wire: what an engine's connector and the agent of its node say to each other, byte by byte,
 * over a Unix socket that keeps messages apart (SOCK_SEQPACKET). Versioned; believed by nobody
 * without looking; no code, no pickle. Numbers are little-endian. Pure; any thread. Everything read
 * points into what was read.
 *
 * An engine has two kinds of connection: one of its scheduler, which knows requests and their
 * tokens, and one for each worker process (rank), which has the memory. All say the same engine_id
 * and are served as one. Before a message of a worker is served, all that its engine's
 * scheduler has sent is read.
 *
 * Several ranks (tensor or pipeline parallel) have each a part of every block, and number their
 * blocks alike. Nothing is found, loaded or saved before all of them are there. Each says every
 * LOAD and SAVE, by the same number and with the same blocks; it is done once, when all have said
 * it, and answered to each; what not all say in time, or one leaves out, is not done and answered
 * as such. So an engine whose ranks compute one behind the other (pipeline) does not wait for
 * SAVED before it has handed on what the next rank needs.
 *
 * Every message: u16 magic "SV" (0x5653), u8 version, u8 kind, u32 length in all, u64 boot; then
 * its body. boot is drawn by the agent when it starts and is in every message of it; an engine that
 * sees another one than WELCOME's registers anew. From an engine it is 0 in HELLO, WELCOME's else.
 *
 * engine -> agent                                  agent -> engine
 *   HELLO      who I am, my memory                   WELCOME or REFUSED
 *   OPEN       a request came: its tokens            -
 *   TOKENS     more of them                          -
 *   LOOKUP     what of it could be loaded?           FOUND (within 2 ms, or it is a miss)
 *   TAKE       I have room for these: keep them      -
 *   CLOSE      it finished or was aborted            -
 *   RESET      forget all of this model's pages      DONE, when no restart can bring them back
 *   LOAD       fill these blocks of mine (worker)    LOADED, whenever it is done
 *   SAVE       keep these blocks of mine (worker)    SAVED; the engine waits for it
 *   PING                                             PONG
 *
 * What an agent says without being asked does not exist. An agent that cannot read a message
 * answers REFUSED and closes; an engine then is without tiers until it has registered anew.
 *
 * Who closes: an engine that goes on without SAVED, or gives up, first shuts its sending side down.
 * For what is still being loaded it reads on, and keeps those blocks until LOADED or until the
 * agent has closed too. So an agent closes a worker's connection, for whatever reason, only when
 * nothing of it copies into or out of that worker's memory any more: who reads end of file has its
 * pages for itself. Numbers of requests and jobs begin anew with a connection; what an engine had
 * OPENed before, it opens again if it likes.
 */
#ifndef KVTIER_CONNECTOR_IPC_WIRE_H
#define KVTIER_CONNECTOR_IPC_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/buf.h"
#include "backends/runtime/must_check.h"
#include "backends/runtime/slice.h"
#include "kvtier/device/device.h"

enum {
    IPC_VERSION = 1,
    IPC_MAGIC = 0x5653,
    IPC_HEAD_BYTES = 16,
    IPC_MESSAGE_BYTES_MAX = 65536, /* a socket's buffer holds a few of them */
    IPC_TEXT_BYTES_MAX = 1024,
    IPC_ID_BYTES = 16,
    IPC_TOKEN_COUNT_MAX = 15000, /* of one message */
    IPC_BLOCK_COUNT_MAX = 15000, /* of one LOAD or one entry of SAVE */
    IPC_SAVE_ENTRY_COUNT_MAX = 512,
    IPC_LOOKUP_MS = 2, /* an engine that has no FOUND by then goes on without */
};

enum ipc_kind {
    IPC_HELLO = 1,
    IPC_OPEN = 2,
    IPC_TOKENS = 3,
    IPC_LOOKUP = 4,
    IPC_TAKE = 5,
    IPC_CLOSE = 6,
    IPC_RESET = 7,
    IPC_LOAD = 8,
    IPC_SAVE = 9,
    IPC_PING = 10,
    IPC_WELCOME = 65,
    IPC_REFUSED = 66,
    IPC_FOUND = 67,
    IPC_DONE = 68,
    IPC_LOADED = 69,
    IPC_SAVED = 70,
    IPC_PONG = 71,
};

enum ipc_role { IPC_SCHEDULER = 1, IPC_WORKER = 2 };

/*
 * HELLO. u8 role, u8 device kind (enum device_kind), u16 rank, u16 rank_count, u16 region_count,
 * u32 segment_count, u32 block_count, u32 block_tokens, 16 bytes engine_id, 16 bytes gpu uuid,
 * 64 bytes event handle; then texts, each u16 length and bytes: worker (the advertised URL of the
 * worker in the agent's words; empty where the agent has one engine only), model (all that says
 * which weights and which layout: name, revision, dtype, attention backend, ...: what is equal
 * there is exchangeable), version (the engine's, for people); then the regions: u64 bytes, u64
 * offset in the allocation, 64 bytes handle; then the segments: u32 region, u32 0, u64 offset, u64
 * stride, u64 bytes. A scheduler has no regions and segments. Host memory: one descriptor a region,
 * with the message (SCM_RIGHTS), in their order.
 */
struct ipc_hello {
    enum ipc_role role;
    enum device_kind device;
    uint16_t rank;
    uint16_t rank_count;
    uint16_t region_count;
    uint32_t segment_count;
    uint32_t block_count;
    uint32_t block_tokens;
    uint8_t engine_id[IPC_ID_BYTES];
    uint8_t uuid[16];
    uint8_t event_handle[DEVICE_HANDLE_BYTES];
    struct slice worker;
    struct slice model;
    struct slice version;
    struct slice regions;  /* ipc_hello_region() */
    struct slice segments; /* ipc_hello_segment() */
};

struct ipc_region {
    uint64_t bytes;
    uint64_t offset;
    uint8_t handle[DEVICE_HANDLE_BYTES];
};

/* OPEN. u64 request, u32 prompt_tokens, u32 token_count, texts: id, lora, salt; u32 tokens.
 * request: a number that this scheduler has not used before; the tokens are the first of the
 * prompt. */
struct ipc_open {
    uint64_t request;
    uint32_t prompt_tokens;
    struct slice id;   /* as the engine calls it: "chatcmpl-<attempt>-<its own suffix>", or alike */
    struct slice lora; /* empty: none */
    struct slice salt; /* empty: none */
    struct slice tokens;
    uint32_t token_count;
};

/* TOKENS. u64 request, u32 first, u32 token_count; u32 tokens: in order, without a gap. */
struct ipc_tokens {
    uint64_t request;
    uint32_t first;
    uint32_t token_count;
    struct slice tokens;
};

/* LOOKUP. u64 request, u32 local_tokens (a multiple of the block), u32 0. */
struct ipc_lookup {
    uint64_t request;
    uint32_t local_tokens; /* that the engine has itself, from the first on */
};

/* FOUND. u64 request, u32 tokens, u32 later_ms, u8 why (enum ipc_found_why), 7 bytes 0. tokens:
 * beyond local_tokens, a multiple of the block, never the prompt's last token; they are held for
 * the engine until TAKE, CLOSE, another LOOKUP, or the lease's end. later_ms > 0: ask again then,
 * more is on its way; tokens is 0. */
enum ipc_found_why {
    IPC_FOUND_HIT = 0,
    IPC_FOUND_MISS = 1,
    IPC_FOUND_SLOWER = 2,  /* held, but computing it is predicted to be faster */
    IPC_FOUND_LATER = 3,   /* comes up from the SSD: soon */
    IPC_FOUND_NO_ROOM = 4, /* queues are full, or tiers are turned off */
};
struct ipc_found {
    uint64_t request;
    uint32_t tokens;
    uint32_t later_ms;
    enum ipc_found_why why;
};

/* TAKE. u64 request, u32 first_block, u32 block_count: from the prompt's first block on. What was
 * found beyond is let go. block_count 0: all of it; or, behind LOADED, that the engine goes on with
 * the request now, which tells how much of a load's time is the engine's own. */
struct ipc_take {
    uint64_t request;
    uint32_t first_block;
    uint32_t block_count;
};

/* CLOSE. u64 request. RESET, DONE, PING, PONG: u64 number, which the answer repeats. */
struct ipc_number {
    uint64_t number;
};

/* LOAD. u64 job, u64 request, u32 first_block, u32 block_count; u32 engine blocks. */
struct ipc_load {
    uint64_t job; /* not used before by this worker; of several ranks: higher than those before */
    uint64_t request;
    uint32_t first_block;
    uint32_t block_count;
    struct slice engine_blocks; /* u32 each */
};

/* LOADED. u64 job, u32 block_count, u32 0: how many from the first on are there and right. The
 * others may be anything: the engine computes them anew. */
struct ipc_loaded {
    uint64_t job;
    uint32_t block_count;
};

/* SAVE. u64 job, u32 entry_count, u32 step_tokens, u32 step_us, u32 0; entries: u64 request,
 * u32 first_block, u32 block_count, u32 engine blocks. step_*: what this step of the engine
 * computed and how long it took, from which the agent learns what computing costs; 0: not known.
 * The engine leaves the blocks alone until SAVED, or until it has closed the connection. */
struct ipc_save {
    uint64_t job;
    uint32_t entry_count;
    uint32_t step_tokens;
    uint32_t step_us;
    struct slice entries; /* ipc_save_entry() */
};
struct ipc_save_entry {
    uint64_t request;
    uint32_t first_block;
    uint32_t block_count;
    struct slice engine_blocks; /* u32 each */
};

/* SAVED. u64 job, u32 saved, u32 known, u32 refused, u32 0. */
struct ipc_saved {
    uint64_t job;
    uint32_t saved;
    uint32_t known;
    uint32_t refused;
};

/* WELCOME. u32 lease_ms, u32 lookup_ms, u32 save_ms (after which an engine need not wait any
 * longer), u32 flags (0); text: the agent's version. */
struct ipc_welcome {
    uint32_t lease_ms;
    uint32_t lookup_ms;
    uint32_t save_ms;
    struct slice version;
};

/* REFUSED. u16 code (enum ipc_refusal), u16 0, u32 0; text: a sentence for the engine's log. */
enum ipc_refusal {
    IPC_REFUSED_VERSION = 1, /* speak another version */
    IPC_REFUSED_BROKEN = 2,  /* a message that is none */
    IPC_REFUSED_WORKER = 3,  /* no engine of that name here, or which one is not said */
    IPC_REFUSED_LAYOUT = 4,  /* memory that cannot be used, or one layout too many */
    IPC_REFUSED_RANKS = 5,   /* a rank that cannot be, or that another process speaks for */
    IPC_REFUSED_BUSY = 6,    /* too many engines or requests */
};
struct ipc_refused {
    enum ipc_refusal code;
    struct slice text;
};

/* ---- reading ---- */

struct ipc_message {
    enum ipc_kind kind;
    uint64_t boot;
    union {
        struct ipc_hello hello;
        struct ipc_open open;
        struct ipc_tokens tokens;
        struct ipc_lookup lookup;
        struct ipc_found found;
        struct ipc_take take;
        struct ipc_number number; /* CLOSE, RESET, DONE, PING, PONG */
        struct ipc_load load;
        struct ipc_loaded loaded;
        struct ipc_save save;
        struct ipc_saved saved;
        struct ipc_welcome welcome;
        struct ipc_refused refused;
    } as;
};

/* One whole message. -EPROTO: it is none; -EPROTONOSUPPORT: of another version (its head is
 * right). All counts and lengths were checked against what is there; entries of SAVE too. */
MUST_CHECK int ipc_message_read(struct slice bytes, struct ipc_message *message);

struct ipc_region ipc_hello_region(const struct ipc_hello *hello, size_t index);
struct page_segment ipc_hello_segment(const struct ipc_hello *hello, size_t index);
uint32_t ipc_u32_at(struct slice numbers, size_t index); /* of tokens, engine_blocks */

/* Takes the next entry off *rest, which starts as save->entries; false: that was all. */
bool ipc_save_entry(struct slice *rest, struct ipc_save_entry *entry);

/* ---- writing ---- */

/* Appends the whole message, or nothing; slices of numbers, regions, segments and entries are
 * copied as they are. -ENOMEM, -ENOBUFS as buf_append(); -EMSGSIZE: longer than
 * IPC_MESSAGE_BYTES_MAX. */
MUST_CHECK int ipc_message_write(struct buf *out, const struct ipc_message *message);

/* What hello->regions, hello->segments and save->entries are made of, one after the other. Errors
 * as buf_append(). */
MUST_CHECK int ipc_region_write(struct buf *out, const struct ipc_region *region);
MUST_CHECK int ipc_segment_write(struct buf *out, const struct page_segment *segment);
MUST_CHECK int ipc_save_entry_write(struct buf *out, const struct ipc_save_entry *entry);

#endif
