# shellcheck shell=sh
# SPDX-License-Identifier: Apache-2.0
#
# What the build and the tests need from the distribution: Debian 12 and 13. Sourced by ./check.

PACKAGES_BUILD="ca-certificates gcc g++ libc6-dev cmake ninja-build pkg-config
libuv1-dev libsimdjson-dev libxxhash-dev libyaml-dev libzmq3-dev libhiredis-dev liburing-dev"
PACKAGES_TEST="ccache clang clang-format curl libcriterion-dev procps python3 python3-venv redis-server"
PACKAGES_PEERS="haproxy nginx" # what the same bytes do elsewhere: test_differential.py
PACKAGES_VLLM="binutils libnuma1"
PACKAGES_DOCKER="buildah debootstrap"

is_installed()
{
    [ "$(dpkg-query -W -f '${Status}' "$1" 2>/dev/null)" = "install ok installed" ]
}

# The names of those given that are not installed.
missing_of()
{
    for package in "$@"; do
        is_installed "$package" || echo "$package"
    done
}

is_available()
{
    apt-cache show --no-all-versions "$1" >/dev/null 2>&1
}

# install_packages PACKAGE...: only what is missing, and only as root.
install_packages()
{
    missing=$(missing_of "$@")
    [ -n "$missing" ] || return 0
    # shellcheck disable=SC2086
    set -- $missing
    if [ "$(id -u)" -ne 0 ]; then
        echo "not root, so please: apt-get install -y --no-install-recommends $*"
        return 1
    fi
    say "installing: $*"
    DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 \
        install -y --no-install-recommends "$@"
}

update_lists()
{
    [ "$(id -u)" -ne 0 ] || apt-get -o Acquire::Retries=3 update
}

# llhttp is a library on Debian 13 and a folder of C sources on Debian 12.
llhttp_package()
{
    if is_installed libllhttp-dev || is_available libllhttp-dev; then
        echo libllhttp-dev
    else
        echo node-llhttp
    fi
}

# clang's sanitizer runtimes are a recommendation of clang, with its version in the name.
clang_runtime_package()
{
    version=$({ dpkg-query -W -f '${Depends}\n' clang || apt-cache depends clang; } 2>/dev/null |
        sed -n 's/.*clang-\([0-9][0-9]*\).*/\1/p' | head -n 1)
    [ -z "$version" ] || echo "libclang-rt-$version-dev"
}

# clang-format 14 judges the format (tests/lint/check_format); Debian 13 no longer has it.
format_package()
{
    if is_installed clang-format-14 || is_available clang-format-14; then echo clang-format-14; fi
}

llhttp_is_installed()
{
    is_installed libllhttp-dev || is_installed node-llhttp
}

# A root made by debootstrap has no /etc/hosts, and so no localhost.
ensure_localhost()
{
    [ -e /etc/hosts ] || [ "$(id -u)" -ne 0 ] || echo "127.0.0.1 localhost" >/etc/hosts
}

# promtool alone, out of its package: nobody who runs the tests asked for a Prometheus server,
# which is what Debian 12 has it in.
TOOLS_DIR=build/tools
PATH=$PATH:$PWD/$TOOLS_DIR
unpack_promtool()
{
    ! command -v promtool >/dev/null || return 0
    if is_available promtool; then package=promtool; else package=prometheus; fi
    say "unpacking promtool (of the package $package)"
    rm -rf $TOOLS_DIR && mkdir -p $TOOLS_DIR/package && (
        cd $TOOLS_DIR/package && apt-get -o Acquire::Retries=3 -o APT::Sandbox::User=root \
            download $package && dpkg-deb -x ${package}_*.deb . && mv usr/bin/promtool ..
    ) && rm -rf $TOOLS_DIR/package
}

# install_idle PACKAGE...: the programs; their services are not started, since nobody asked for a
# web server on port 80 (policy-rc.d: what a package's installation asks before it starts one).
POLICY=/usr/sbin/policy-rc.d
install_idle()
{
    [ -n "$(missing_of "$@")" ] || return 0
    if [ "$(id -u)" -ne 0 ] || [ -e $POLICY ]; then
        install_packages "$@"
        return
    fi
    printf '#!/bin/sh\nexit 101\n' >$POLICY && chmod +x $POLICY
    install_packages "$@"
    idle_status=$?
    rm -f $POLICY
    return $idle_status
}

part_deps()
{
    ensure_localhost
    # shellcheck disable=SC2086
    if [ -n "$(missing_of $PACKAGES_BUILD $PACKAGES_TEST $PACKAGES_PEERS $(clang_runtime_package))" ] ||
        ! llhttp_is_installed; then
        update_lists || echo "apt-get update failed; the lists that are there must do"
    fi
    # shellcheck disable=SC2086,SC2046
    install_packages $PACKAGES_BUILD $PACKAGES_TEST $(llhttp_package) $(clang_runtime_package) \
        $(format_package) || return 1
    # shellcheck disable=SC2086
    install_idle $PACKAGES_PEERS || echo "no haproxy or nginx: the test that asks them is skipped"
    unpack_promtool || echo "no promtool: the tests that ask it are skipped"
}
