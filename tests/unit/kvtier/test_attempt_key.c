/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/attempt_key.h"

#include "hashing/digest.h"
#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <string.h>

TestSuite(attempt_key, .fini = leak_check);

static uint8_t secret[DIGEST_SECRET_BYTES];

static uint64_t key_of(const char *engine_id)
{
    return attempt_key_of_engine_id(secret, slice_of_string(engine_id));
}

Test(attempt_key, is_that_of_the_id_the_router_sent_whatever_the_engine_put_around_it)
{
    static const char *const ids[] = {
        "req-1-abc123",        "chatcmpl-req-1-abc123",        "chatcmpl-req-1-abc123-0f3e5a77",
        "cmpl-req-1-abc123-0", "cmpl-req-1-abc123-0-9bd1f200", "resp_req-1-abc123-0f3e5a77",
        "msg_req-1-abc123"};
    uint64_t expected;

    digest_secret_derive(secret, "attempt", 7);
    expected = digest_64(secret, DIGEST_ATTEMPT, "req-1-abc123", 12);

    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        cr_assert(eq(u64, key_of(ids[i]), expected), "%s", ids[i]);
}

Test(attempt_key, an_id_that_no_router_of_ours_sent_has_none)
{
    static const char *const ids[] = {
        "", "-", "chatcmpl-", "abc123", "chatcmpl-0123456789abcdef", "a-b-c", "-------"};

    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        cr_assert(eq(u64, key_of(ids[i]), 0), "%s", ids[i]);
}

Test(attempt_key, a_client_s_own_beginning_stays_its_own)
{
    digest_secret_derive(secret, "attempt", 7);

    cr_assert(eq(u64, key_of("chatcmpl-cmpl-x-abc123"),
                 digest_64(secret, DIGEST_ATTEMPT, "cmpl-x-abc123", 13)));
}
