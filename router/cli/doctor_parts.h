/* SPDX-License-Identifier: Apache-2.0 */

/*
 * doctor_parts: what the files of `samovar doctor` share: what is examined, what was found, and how
 * that is said. Each examination prints its findings as it comes to them.
 */
#ifndef ROUTER_CLI_DOCTOR_PARTS_H
#define ROUTER_CLI_DOCTOR_PARTS_H

#include <stdbool.h>
#include <stdint.h>

#include "backends/io_loop.h"
#include "backends/json/json_scan.h"
#include "backends/redis/residency_wire.h"
#include "backends/runtime/buf.h"
#include "backends/worker_url.h"
#include "router/options.h"

struct doctor_redis;

enum { DOCTOR_WORKER_COUNT_MAX = 256, DOCTOR_TIMEOUT_MS = 10000 };

/* A worker of the configuration, or one that an agent names. */
struct doctor_worker {
    char name[WORKER_NAME_BYTES_MAX]; /* as in the map */
    struct worker_url url;
    struct sockaddr_storage address;
    bool is_reachable; /* it has answered */
    bool has_lease;    /* its agent speaks for it, in our fingerprint */
    uint64_t sequence; /* of that lease */
};

enum doctor_level { DOCTOR_FINE, DOCTOR_DOUBT, DOCTOR_BAD };

struct doctor {
    const struct router_options *options;
    struct io_loop *io;
    const char *admin;          /* of the running router; NULL: as options say */
    const char *authorization;  /* that workers ask for; NULL: none */
    uint64_t fingerprint;       /* ours; 0: no secret-file, so it is different at each start */
    struct doctor_redis *redis; /* NULL: none is configured, or it cannot be used */
    struct doctor_worker *workers;
    size_t worker_count;
    uint32_t doubt_count;
    uint32_t bad_count;
};

/* One line: a sentence, and where it is not fine what to do about it. */
__attribute__((format(printf, 3, 4))) void
doctor_say(struct doctor *doctor, enum doctor_level level, const char *format, ...);

/* NULL: there are too many, which is said once. The same one for the same name. */
struct doctor_worker *doctor_add_worker(struct doctor *doctor, const char *name);

/* Can it be reached, does it serve us, may our user do what it must and no more? Then redis is
 * there for the rest. */
void doctor_examine_redis(struct doctor *doctor);

/* Who speaks for which worker, and is it understood? Adds the workers that agents name. */
void doctor_examine_agents(struct doctor *doctor);

/* How many changes all agents have published. */
uint64_t doctor_agents_sequence(struct doctor *doctor);

void doctor_close_redis(struct doctor *doctor);

/* Do they answer, keep idle connections for as long as we do, and find a prompt again? */
void doctor_examine_workers(struct doctor *doctor, bool is_probing);

/* What does the running router say, and does a prompt find its way back through it? */
void doctor_examine_router(struct doctor *doctor, bool is_probing);

/* ---- asking over HTTP ---- */

struct doctor_answer {
    bool is_done;
    int error; /* 0: status and body are the answer's */
    int status;
    struct buf body; /* with JSON_PADDING readable bytes behind it */
    double seconds;
};

/* A place to ask: of a worker, or of a router's listener. */
struct doctor_place {
    const struct sockaddr_storage *address;
    const char *authority;
};

/* json: the body of a POST; empty: a GET. Waits for the answer, whose body is to be released. */
void doctor_ask(struct doctor *doctor, struct doctor_place place, const char *target,
                struct slice json, struct doctor_answer *answer);

struct doctor_probe {
    char why[256];  /* why it could not be made; "": it was */
    int64_t prompt; /* tokens of the second turn */
    int64_t cached; /* of them found; -1: the answer does not say */
};

/* Two turns of a conversation that nobody has had before, one token of answer each. */
struct doctor_probe doctor_probe(struct doctor *doctor, struct doctor_place place);

#endif
