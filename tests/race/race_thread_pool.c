/* SPDX-License-Identifier: Apache-2.0 */

/*
 * race_thread_pool: bodies read by the real threads while the loop submits, cancels and takes back.
 * A wave of jobs goes in; some are cancelled at once, while they wait, run or are done. Each that
 * comes back must have found what one thread alone finds. What is freed too early or read by two at
 * once is the sanitizer's to see.
 */

#include "backends/io_loop.h"
#include "backends/thread_pool.h"
#include "router/prompt/body_parse.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREAD_COUNT = 3, QUEUE_MAX = 8, WAVE_COUNT = 150, WAVE_JOB_COUNT = 32, BODY_COUNT = 4 };
enum { BODY_BYTES_MAX = 1 << 18, ARENA_BYTES = 1 << 20 };

static const uint8_t secret[BLOCK_CHAIN_SECRET_BYTES] = {2, 7, 1, 8, 2, 8};

struct race {
    struct io_loop io;
    struct thread_pool *pool;
    struct buf bodies[BODY_COUNT];
    struct block expected[BODY_COUNT]; /* the last block of each */
    unsigned running, done_count, cancelled_count, refused_count;
};

struct race_job {
    struct thread_job job;
    struct race *race;
    int number; /* of its body */
    struct buf body;
    struct arena arena;
    struct body_parse parse;
};

static void write_body(struct buf *body, int number)
{
    int status = buf_printf(body, "{\"model\":\"tiny\",\"messages\":[{\"role\":\"user\","
                                  "\"content\":\"");

    for (int word = 0; status == 0 && word < 500 << number; word++)
        status = buf_printf(body, "word %d of body %d\\n", word, number);
    if (status == 0)
        status = buf_printf(body, "\"}]}");
    assert(status == 0);
}

static struct block last_block(const struct body_parse *parse)
{
    assert(parse->request_status == 0 && parse->prompt_status == 0);

    return parse->prompt.blocks[parse->prompt.block_count - 1];
}

static void free_job(struct race_job *job)
{
    arena_release(&job->arena);
    buf_release(&job->body);
    free(job);
}

static void run(struct thread_job *thread_job, void *scanner)
{
    body_parse_run(&container_of(thread_job, struct race_job, job)->parse, scanner);
}

static void on_done(struct thread_job *thread_job)
{
    struct race_job *job = container_of(thread_job, struct race_job, job);

    assert(last_block(&job->parse).hash == job->race->expected[job->number].hash);
    job->race->running--;
    job->race->done_count++;
    free_job(job);
}

static struct race_job *make_job(struct race *race, int number)
{
    struct race_job *job = calloc(1, sizeof *job);
    int status;

    assert(job != NULL);
    thread_job_init(&job->job, run, on_done);
    job->race = race;
    job->number = number;
    buf_init(&job->body, BODY_BYTES_MAX);
    status = buf_append(&job->body, buf_slice(&race->bodies[number]));
    assert(status == 0);
    arena_init(&job->arena, ARENA_BYTES);
    job->parse = (struct body_parse){
        .api = API_CHAT, .body = buf_slice(&job->body), .secret = secret, .arena = &job->arena};
    return job;
}

/* One turn of the loop's: a burst, some of which is regretted. */
static void submit_wave(struct race *race, int wave)
{
    struct race_job *jobs[WAVE_JOB_COUNT];

    for (int i = 0; i < WAVE_JOB_COUNT; i++) {
        jobs[i] = make_job(race, (wave + i) % BODY_COUNT);
        if (thread_pool_submit(race->pool, &jobs[i]->job) == 0) {
            race->running++;
            continue;
        }
        race->refused_count++;
        free_job(jobs[i]);
        jobs[i] = NULL;
    }
    for (int i = wave % 3; i < WAVE_JOB_COUNT; i += 3) {
        if (jobs[i] != NULL && thread_pool_cancel(race->pool, &jobs[i]->job)) {
            race->running--;
            race->cancelled_count++;
            free_job(jobs[i]);
        }
    }
}

/* One that a thread has, or is done with, when the pool is closed. */
static void submit_last(struct race *race)
{
    struct race_job *job = make_job(race, BODY_COUNT - 1);
    int status = thread_pool_submit(race->pool, &job->job);

    assert(status == 0);
    race->running++;
    while (thread_pool_cancel(race->pool, &job->job)) {
        status = thread_pool_submit(race->pool, &job->job);
        assert(status == 0);
    }
}

static void prepare(struct race *race, struct json_scanner *scanner)
{
    for (int i = 0; i < BODY_COUNT; i++) {
        struct race_job *alone;

        buf_init(&race->bodies[i], BODY_BYTES_MAX);
        write_body(&race->bodies[i], i);
        alone = make_job(race, i);
        body_parse_run(&alone->parse, scanner);
        race->expected[i] = last_block(&alone->parse);
        free_job(alone);
    }
}

static void release(struct race *race)
{
    thread_pool_close(race->pool); /* what runs comes back in here */
    assert(race->running == 0);
    io_loop_stop_tick(&race->io);
    uv_run(&race->io.loop, UV_RUN_DEFAULT);
    io_loop_release(&race->io);
    for (int i = 0; i < BODY_COUNT; i++)
        buf_release(&race->bodies[i]);
}

int main(void)
{
    struct race *race = calloc(1, sizeof *race);
    void *scanners[THREAD_COUNT];
    int status;

    assert(race != NULL);
    status = io_loop_init(&race->io);
    assert(status == 0);
    for (int i = 0; i < THREAD_COUNT; i++)
        scanners[i] = json_scanner_create();
    prepare(race, scanners[0]);
    race->pool = thread_pool_create(&race->io.loop,
                                    (struct thread_pool_config){THREAD_COUNT, QUEUE_MAX, scanners});
    assert(race->pool != NULL);
    for (int wave = 0; wave < WAVE_COUNT; wave++) {
        submit_wave(race, wave);
        while (race->running > QUEUE_MAX / 2) /* the rest is still out there in the next wave */
            uv_run(&race->io.loop, UV_RUN_ONCE);
    }
    while (race->running > 0)
        uv_run(&race->io.loop, UV_RUN_ONCE);
    submit_last(race);
    release(race);
    assert(race->done_count > 0 && race->cancelled_count > 0 && race->refused_count > 0);
    printf("%u done, %u cancelled, %u refused\n", race->done_count, race->cancelled_count,
           race->refused_count);
    for (int i = 0; i < THREAD_COUNT; i++)
        json_scanner_destroy(scanners[i]);
    free(race);
    return 0;
}
