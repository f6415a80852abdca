/* SPDX-License-Identifier: Apache-2.0 */

/* docker/users.acl and users-6.2.acl: who may do what. */
#include "tests/support/leak_check.h"
#include "tests/support/redis_server.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <stdio.h>
#include <string.h>

enum user { ROUTER, AGENT };

/* One command as user, and whether it was done. */
static bool may(const struct redis_server *server, enum user user, const char *command)
{
    const char *name = user == ROUTER ? "router" : "agent-1";
    char words[512], reply[512];

    snprintf(words, sizeof words, "AUTH %s change-me-%s\r\n%s", name, name, command);
    redis_server_ask(server, words, reply, sizeof reply);
    cr_assert(eq(int, strncmp(reply, "+OK\r\n", 5), 0), "%s: %s", words, reply);
    cr_assert(reply[5] != '-' || strncmp(reply + 5, "-NOPERM", 7) == 0, "%s: %s", words, reply);
    return reply[5] != '-';
}

struct rule {
    enum user user;
    const char *command;
};

static const struct rule allowed[] = {
    {ROUTER, "PING"},
    {ROUTER, "CLIENT SETNAME r"},
    {ROUTER, "SELECT 0"},
    {ROUTER, "SMEMBERS smv:00fe:workers"},
    {ROUTER, "MGET smv:{http://a:1}:lease smv:{http://b:1}:lease"},
    {ROUTER, "HGETALL smv:{http://a:1}:meta"},
    {ROUTER, "GET smv:{http://a:1}:0abc-1:p:0"},
    {ROUTER, "XREVRANGE smv:{http://a:1}:0abc-1:out + - COUNT 1"},
    {ROUTER, "XRANGE smv:{http://a:1}:0abc-1:out 1 +"},
    {ROUTER, "XREAD COUNT 1 BLOCK 1 STREAMS smv:{http://a:1}:0abc-1:out smv:routers 0 0"},
    {ROUTER, "XADD smv:{http://a:1}:in MAXLEN ~ 100 * b x"},
    {ROUTER, "XADD smv:routers MAXLEN ~ 100 * b x"},
    {AGENT, "PING"},
    {AGENT, "CLIENT SETNAME a"},
    {AGENT, "MULTI"},
    {AGENT, "SADD smv:00fe:workers http://node-1:1"},
    {AGENT, "HSET smv:{http://node-1:1}:meta url x"},
    {AGENT, "EXPIRE smv:{http://node-1:1}:meta 9"},
    {AGENT, "SET smv:{http://node-1:1}:lease x PX 1000 GET"},
    {AGENT, "GET smv:{http://node-1:1}:lease"},
    {AGENT, "UNLINK smv:{http://node-1:1}:lease"},
    {AGENT, "SET smv:{http://node-1:1}:0abc-1:p:0 x EX 9"},
    {AGENT, "SETRANGE smv:{http://node-1:1}:0abc-1:p:0 1 x"},
    {AGENT, "EXPIRE smv:{http://node-1:1}:0abc-1:p:0 9"},
    {AGENT, "XADD smv:{http://node-1:1}:0abc-1:out 1-1 b x"},
    {AGENT, "XADD smv:{http://node-1:1}:0abc-1:out NOMKSTREAM MINID ~ 1-1 2-1 b x"},
    {AGENT, "XREVRANGE smv:{http://node-1:1}:0abc-1:out + - COUNT 1"},
    {AGENT, "UNLINK smv:{http://node-1:1}:0abc-1:out smv:{http://node-1:1}:0abc-1:p:0"},
    {AGENT, "XREAD COUNT 1 BLOCK 1 STREAMS smv:{http://node-1:1}:in 0"},
    {AGENT, "XREVRANGE smv:{http://node-1:1}:in + - COUNT 1"},
};

/* What nobody needs, and whoever has a password would do first. */
static const struct rule denied[] = {
    {ROUTER, "FLUSHALL"},
    {ROUTER, "CONFIG GET requirepass"},
    {ROUTER, "KEYS *"},
    {ROUTER, "SCAN 0"},
    {ROUTER, "EVAL \"return 1\" 0"},
    {ROUTER, "ACL LIST"},
    {ROUTER, "GET other"},
    {ROUTER, "SET smv:{http://node-1:1}:lease x"},
    {ROUTER, "HSET smv:{http://node-1:1}:meta url x"},
    {ROUTER, "SADD smv:00fe:workers x"},
    {ROUTER, "UNLINK smv:{http://node-1:1}:in"},
    {ROUTER, "PUBLISH c x"},
    {AGENT, "FLUSHALL"},
    {AGENT, "CONFIG SET dir /tmp"},
    {AGENT, "KEYS *"},
    {AGENT, "SCAN 0"},
    {AGENT, "EVAL \"return 1\" 0"},
    {AGENT, "ACL LIST"},
    {AGENT, "CLIENT LIST"},
    {AGENT, "SHUTDOWN"},
    {AGENT, "GET other"},
    {AGENT, "SET smv:{http://node-2:1}:lease x"},
    {AGENT, "SET smv:{http://node-10:1}:lease x"},
    {AGENT, "SETRANGE smv:{http://node-2:1}:0abc-1:p:0 1 x"},
    {AGENT, "XADD smv:{http://node-2:1}:0abc-1:out 1-1 b x"},
    {AGENT, "HSET smv:{http://node-2:1}:meta url x"},
    {AGENT, "UNLINK smv:{http://node-2:1}:lease"},
    {AGENT, "XADD smv:{http://node-2:1}:in * b x"},
    {AGENT, "XREAD STREAMS smv:{http://node-2:1}:in 0"},
    {AGENT, "XADD smv:routers * b x"},
    {AGENT, "SMEMBERS smv:00fe:workers"},
    {AGENT, "SREM smv:00fe:workers http://node-2:1"},
    {AGENT, "PUBLISH c x"},
};

/* Which 6.2 cannot deny: it has one list of keys a user, and all commands apply to all of them. */
static const struct rule denied_by_selectors[] = {
    {ROUTER, "XADD smv:{http://node-1:1}:0abc-1:out 9-1 b x"},
    {AGENT, "XADD smv:{http://node-1:1}:in * b x"},
    {AGENT, "UNLINK smv:00ff:workers"},
};

static void check(const struct redis_server *server, const struct rule *rules, size_t count,
                  bool is_allowed)
{
    for (size_t i = 0; i < count; i++)
        cr_assert(eq(int, may(server, rules[i].user, rules[i].command), is_allowed), "%s: %s",
                  rules[i].user == ROUTER ? "router" : "agent", rules[i].command);
}

TestSuite(users, .fini = leak_check);

Test(users, of_redis_7_may_do_what_they_need_and_no_more)
{
    struct redis_server *server = redis_server_create_with_users(NULL, "users.acl", "node-1");

    check(server, allowed, array_count(allowed), true);
    check(server, denied, array_count(denied), false);
    check(server, denied_by_selectors, array_count(denied_by_selectors), false);
    redis_server_destroy(server);
}

Test(users, of_redis_6_may_do_a_little_more)
{
    struct redis_server *server = redis_server_create_with_users(NULL, "users-6.2.acl", "node-1");

    check(server, allowed, array_count(allowed), true);
    check(server, denied, array_count(denied), false);
    check(server, denied_by_selectors, array_count(denied_by_selectors), true);
    redis_server_destroy(server);
}
