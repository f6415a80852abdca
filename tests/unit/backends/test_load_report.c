/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/load_report.h"

#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <stdio.h>

enum { FIXTURE_BYTES_MAX = 64 << 10, NOW_MS = 1234 };

static struct worker_report parse(const char *text, enum engine_kind *engine)
{
    struct worker_report report;

    *engine = load_report_parse(slice_of_string(text), NOW_MS, &report);
    return report;
}

/* The body of a recorded answer. */
static struct slice read_answer_body(const char *name, char *bytes)
{
    char path[512];
    FILE *file;
    size_t len;
    const char *end;

    snprintf(path, sizeof path, "%s/fixtures/vllm-0.32.0/http/%s", TESTS_DIR, name);
    file = fopen(path, "rb");
    cr_assert(ne(ptr, file, NULL), "%s is missing", path);
    len = fread(bytes, 1, FIXTURE_BYTES_MAX, file);
    fclose(file);
    end = memmem(bytes, len, "\r\n\r\n", 4);
    cr_assert(ne(ptr, (void *)end, NULL));
    return slice_of(end + 4, len - (size_t)(end + 4 - bytes));
}

TestSuite(load_report, .fini = leak_check);

Test(load_report, a_busy_vllm_is_read_whole)
{
    static char bytes[FIXTURE_BYTES_MAX];
    struct slice text = read_answer_body("metrics-busy.resp", bytes);
    struct worker_report report;

    enum engine_kind engine = load_report_parse(text, NOW_MS, &report);

    cr_assert(eq(int, engine, ENGINE_VLLM));
    cr_assert(report.is_known);
    cr_assert(eq(u64, report.at_ms, NOW_MS));
    cr_assert(eq(u32, report.running, 2));
    cr_assert(eq(u32, report.waiting, 2), "waiting_by_reason is another metric");
    cr_assert(epsilon_eq(dbl, report.cache_usage, 2.0 / 7, 1e-9));
    cr_assert(eq(u64, report.cache_tokens, 2048));
    cr_assert(eq(u32, report.block_tokens, 32));
    cr_assert(gt(u64, report.prompt_tokens, 0));
}

Test(load_report, an_idle_vllm_has_a_known_load_of_zero)
{
    static char bytes[FIXTURE_BYTES_MAX];
    struct slice text = read_answer_body("metrics.resp", bytes);
    struct worker_report report;

    enum engine_kind engine = load_report_parse(text, NOW_MS, &report);

    cr_assert(eq(int, engine, ENGINE_VLLM));
    cr_assert(report.is_known);
    cr_assert(eq(u32, report.running, 0));
    cr_assert(eq(u64, report.cache_tokens, 2048));
    cr_assert(eq(u64, report.prompt_tokens, 6686));
}

Test(load_report, engines_behind_one_port_are_summed_and_their_usage_averaged)
{
    enum engine_kind engine;

    struct worker_report report =
        parse("vllm:num_requests_running{engine=\"0\"} 2.0\n"
              "vllm:num_requests_running{engine=\"1\"} 3.0\n"
              "vllm:num_requests_waiting{engine=\"0\"} 0.0\n"
              "vllm:num_requests_waiting{engine=\"1\"} 4.0\n"
              "vllm:gpu_cache_usage_perc{engine=\"0\"} 0.25\n"
              "vllm:gpu_cache_usage_perc{engine=\"1\"} 0.75\n"
              "vllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"573\"} 1.0\n"
              "vllm:cache_config_info{block_size=\"16\",engine=\"1\",num_gpu_blocks=\"573\"} 1.0\n",
              &engine);

    cr_assert(eq(int, engine, ENGINE_VLLM));
    cr_assert(eq(u32, report.running, 5));
    cr_assert(eq(u32, report.waiting, 4));
    cr_assert(epsilon_eq(dbl, report.cache_usage, 0.5, 1e-9));
    cr_assert(eq(u64, report.cache_tokens, 2 * 16 * 573));
    cr_assert(eq(u32, report.block_tokens, 16));
}

Test(load_report, the_size_that_vllm_says_itself_beats_blocks_times_size)
{
    enum engine_kind engine;

    struct worker_report report =
        parse("vllm:cache_config_info{block_size=\"16\","
              "kv_cache_size_tokens=\"5000\",num_gpu_blocks=\"1000\"} 1\n",
              &engine);

    cr_assert(eq(u64, report.cache_tokens, 5000));
    cr_assert(not(report.is_known), "a load that is not said is unknown, not zero");
}

Test(load_report, sglang_counts_tensor_parallel_ranks_once)
{
    enum engine_kind engine;

    struct worker_report report =
        parse("# TYPE sglang:num_running_reqs gauge\n"
              "sglang:num_running_reqs{model_name=\"m\",pp_rank=\"0\",tp_rank=\"0\"} 4.0\n"
              "sglang:num_running_reqs{model_name=\"m\",pp_rank=\"0\",tp_rank=\"1\"} 4.0\n"
              "sglang:num_queue_reqs{model_name=\"m\",pp_rank=\"0\",tp_rank=\"0\"} 1.0\n"
              "sglang:token_usage{model_name=\"m\"} 0.5\n"
              "sglang:cache_config_info{num_pages=\"1000\",page_size=\"64\"} 1.0\n",
              &engine);

    cr_assert(eq(int, engine, ENGINE_SGLANG));
    cr_assert(report.is_known);
    cr_assert(eq(u32, report.running, 4));
    cr_assert(eq(u32, report.waiting, 1));
    cr_assert(eq(u64, report.cache_tokens, 64000));
    cr_assert(eq(u32, report.block_tokens, 64));
}

Test(load_report, sglang_gauges_and_data_parallel_ranks)
{
    enum engine_kind engine;

    struct worker_report report = parse("sglang:num_running_reqs{dp_rank=\"0\",tp_rank=\"0\"} 1.0\n"
                                        "sglang:num_running_reqs{dp_rank=\"1\",tp_rank=\"2\"} 2.0\n"
                                        "sglang:num_queue_reqs{dp_rank=\"0\"} 0.0\n"
                                        "sglang:max_total_num_tokens{} 4.71258e+05\n"
                                        "sglang:page_size 1.0\n",
                                        &engine);

    cr_assert(eq(int, engine, ENGINE_SGLANG));
    cr_assert(eq(u32, report.running, 3));
    cr_assert(eq(u64, report.cache_tokens, 471258));
    cr_assert(eq(u32, report.block_tokens, 1));
}

Test(load_report, numbers_that_are_no_load_are_not_believed)
{
    static const char *const values[] = {"NaN", "-1", "+Inf", "1e400", "7x", "", "0x"};

    for (size_t i = 0; i < array_count(values); i++) {
        enum engine_kind engine;
        char text[256];
        snprintf(text, sizeof text, "vllm:num_requests_running %s\nvllm:num_requests_waiting 1\n",
                 values[i]);

        struct worker_report report = parse(text, &engine);

        cr_assert(not(report.is_known), "'%s' was taken for a number", values[i]);
        cr_assert(eq(u32, report.running, 0));
    }
}

Test(load_report, quoted_braces_commas_and_none_do_not_confuse_labels)
{
    enum engine_kind engine;

    struct worker_report report =
        parse("vllm:cache_config_info{layers=\"a\\\"}b,num_gpu_blocks=\\\"9\",block_size=\"16\","
              "kv_cache_size_tokens=\"None\",num_gpu_blocks=\"10\"} 1\r\n",
              &engine);

    cr_assert(eq(u32, report.block_tokens, 16));
    cr_assert(eq(u64, report.cache_tokens, 160));
}

Test(load_report, a_text_cut_anywhere_is_read_as_far_as_it_goes)
{
    static char bytes[FIXTURE_BYTES_MAX];
    struct slice text = read_answer_body("metrics-busy.resp", bytes);

    for (size_t len = 0; len < text.len; len++) {
        struct worker_report report;
        enum engine_kind engine = load_report_parse(slice_of(text.ptr, len), NOW_MS, &report);

        cr_assert(engine == ENGINE_VLLM || engine == ENGINE_UNKNOWN);
        cr_assert(le(u32, report.running, 2));
        cr_assert(le(u64, report.cache_tokens, 2048));
    }
}

Test(load_report, other_programs_are_unknown)
{
    enum engine_kind engine;

    struct worker_report report = parse("llamacpp:requests_processing 1\nprocess_cpu 2\n", &engine);

    cr_assert(eq(int, engine, ENGINE_UNKNOWN));
    cr_assert(not(report.is_known));
}

Test(load_report, ranks_have_reports_of_their_own)
{
    static const struct {
        const char *text;
        enum engine_kind engine;
    } rows[] = {
        {"vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 1.0\n"
         "vllm:num_requests_running{engine=\"1\",model_name=\"m\"} 2.0\n"
         "vllm:num_requests_running{engine=\"2\",model_name=\"m\"} 9.0\n"
         "vllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 3.0\n"
         "vllm:num_requests_waiting{engine=\"1\",model_name=\"m\"} 4.0\n"
         "vllm:kv_cache_usage_perc{engine=\"1\",model_name=\"m\"} 0.5\n"
         "vllm:cache_config_info{block_size=\"16\",engine=\"1\",num_gpu_blocks=\"10\"} 1.0\n"
         "vllm:prompt_tokens_total{engine=\"1\",model_name=\"m\"} 77.0\n",
         ENGINE_VLLM},
        {"sglang:num_running_reqs{dp_rank=\"0\",tp_rank=\"0\"} 1\n"
         "sglang:num_running_reqs{dp_rank=\"1\",tp_rank=\"4\"} 2\n"
         "sglang:num_queue_reqs{dp_rank=\"0\",tp_rank=\"0\"} 3\n"
         "sglang:num_queue_reqs{dp_rank=\"1\",tp_rank=\"4\"} 4\n"
         "sglang:num_queue_reqs{tp_rank=\"0\"} 50\n"
         "sglang:token_usage{dp_rank=\"1\",tp_rank=\"4\"} 0.5\n"
         "sglang:page_size{dp_rank=\"1\"} 16\nsglang:max_total_num_tokens{dp_rank=\"1\"} 160\n"
         "sglang:prompt_tokens_total{dp_rank=\"1\"} 77\n",
         ENGINE_SGLANG},
    };

    for (size_t i = 0; i < array_count(rows); i++) {
        struct worker_report reports[2];

        enum engine_kind engine =
            load_report_parse_ranks(slice_of_string(rows[i].text), NOW_MS, reports, 2);

        cr_assert(eq(int, engine, rows[i].engine));
        cr_assert(reports[0].is_known && reports[1].is_known);
        cr_assert(eq(u32, reports[0].running, 1));
        cr_assert(eq(u32, reports[1].running, 2));
        cr_assert(eq(u32, reports[0].waiting, 3), "what is said of no rank is no rank's");
        cr_assert(eq(u32, reports[1].waiting, 4));
        cr_assert(ieee_ulp_eq(dbl, reports[1].cache_usage, 0.5, 2));
        cr_assert(eq(u64, reports[1].cache_tokens, 160));
        cr_assert(eq(u64, reports[1].prompt_tokens, 77));
        cr_assert(eq(u64, reports[0].cache_tokens, 0));
        cr_assert(eq(u64, reports[1].at_ms, NOW_MS));
    }
}

Test(load_report, a_rank_that_nothing_was_said_of_is_unknown)
{
    struct worker_report reports[LOAD_REPORT_RANK_COUNT_MAX];

    enum engine_kind engine =
        load_report_parse_ranks(SLICE("vllm:num_requests_running 1\nvllm:num_requests_waiting 1\n"
                                      "vllm:num_requests_running{engine=\"64\"} 1\n"
                                      "vllm:num_requests_running{engine=\"x\"} 1\n"),
                                NOW_MS, reports, LOAD_REPORT_RANK_COUNT_MAX);

    cr_assert(eq(int, engine, ENGINE_VLLM));
    for (size_t rank = 0; rank < LOAD_REPORT_RANK_COUNT_MAX; rank++)
        cr_assert(not(reports[rank].is_known));
}
