/* SPDX-License-Identifier: Apache-2.0 */

/* A body that the engine accepts has prompts that fit; one that it refuses has a whole error. The
 * first byte of the input chooses the endpoint and the template. */
#include "tests/fuzz/fuzz_input.h"
#include "tests/sim_engine/json_text.h"
#include "tests/sim_engine/request_registry.h"
#include "tests/sim_engine/response_store.h"
#include "tests/sim_engine/responses_echo.h"

#include <assert.h>

/* In the order of the corpus' first bytes. */
static const enum engine_api apis[] = {
    ENGINE_CHAT,         ENGINE_COMPLETIONS, ENGINE_TOKENIZE, ENGINE_RESPONSES, ENGINE_MESSAGES,
    ENGINE_COUNT_TOKENS, ENGINE_EMBEDDINGS,  ENGINE_RERANK,   ENGINE_SCORE,     ENGINE_DETOKENIZE,
};

static void check(const struct request_reader *reader, enum engine_api api, struct json_value root)
{
    const struct engine_model *model = reader->model;
    struct engine_request request;
    struct engine_fault fault = {0};

    if (engine_request_read(api, reader, root, &request, &fault) < 0) {
        assert(fault.status == 400 || fault.status == 404);
        assert(fault.type != NULL && fault.message[0] != '\0');
    } else {
        assert(request.prompt_count > 0);
        assert(api != ENGINE_RESPONSES || text_piece(&request.echo, ECHO_USER).len > 0);
        assert(request.choice_count >= 1 && request.choice_count <= ENGINE_CHOICE_COUNT_MAX);
        for (size_t i = 0; i < request.prompt_count; i++) {
            assert(request.prompts[i].count > 0 || api == ENGINE_DETOKENIZE);
            if (api == ENGINE_DETOKENIZE)
                continue;
            assert(request.prompts[i].count + request.answer_tokens <= model->context_tokens_max);
        }
    }
    engine_request_release(&request);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct engine_model model = {.name = SLICE("tiny"), .context_tokens_max = 1024};
    struct json_scanner *scanner = json_scanner_create();
    struct response_store *store = response_store_create(1);
    struct request_reader reader = {
        .model = &model, .form_scanner = json_scanner_create(), .store = store};
    struct parse_error error;
    struct json_value root;

    assert(scanner != NULL && reader.form_scanner != NULL);
    response_store_put(store, SLICE("resp_1"), SLICE("{}"),
                       SLICE("{\"role\":\"user\",\"content\":\"hello\"}"));
    if (size > 0) {
        model.chat_template.habit = (enum chat_habit)(bytes[0] % CHAT_HABIT_COUNT);
        if (json_scan_copy(scanner, slice_of(bytes + 1, size - 1), &root, &error) == 0)
            check(&reader, apis[bytes[0] / CHAT_HABIT_COUNT % array_count(apis)], root);
    }
    json_scanner_destroy(scanner);
    json_scanner_destroy(reader.form_scanner);
    response_store_destroy(store);
    return 0;
}
