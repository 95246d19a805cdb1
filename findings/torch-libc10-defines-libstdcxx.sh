#!/bin/sh
# Surprise: PyTorch's libc10.so defines functions of the C++ standard library, among them the constructor of std::ostringstream. An
# extension that is linked with -lc10 before libstdc++ takes them from there, without a symbol version, and everything else of the
# stream from libstdc++. It works where both fit. In an extension compiled by gcc 13, in an Ubuntu 24.04 process with PyTorch 2.11,
# the first std::ostringstream crashed; with gcc 12 on Debian 12 it did not.
#
# Natural guess: a shared library of PyTorch exports PyTorch's functions, and the order of libraries on the linker's command line
# does not choose whose std::ostringstream a program gets. (The compiler adds -lstdc++ last.)
#
# What helps: -lstdc++ before -lc10.
#
# PyTorch 2.13.0 (2.11.0 and 2.14.1 do the same), g++ 12.2, binutils 2.40; Python 3.11; 2026-11-28.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip install --quiet --no-deps --target "$folder" torch==2.13.0
cd "$folder"
cat > stream.cpp <<'PROGRAM'
#include <sstream>
std::string text(int n)
{
    std::ostringstream out;
    out << n;
    return out.str();
}
PROGRAM
name='_ZNSt7__cxx1119basic_ostringstreamIcSt11char_traitsIcESaIcEEC1Ev' # std::ostringstream::ostringstream()
g++ -std=c++20 -fPIC -c stream.cpp
g++ -shared -o late.so stream.o -Ltorch/lib -Wl,--no-as-needed -lc10 -Wl,--allow-shlib-undefined
g++ -shared -o early.so stream.o -Ltorch/lib -Wl,--no-as-needed -lstdc++ -lc10 -Wl,--allow-shlib-undefined
echo "libc10 defines:         $(nm -D --defined-only torch/lib/libc10.so | grep "$name")"
echo "linked before libstdc++:$(nm -D late.so | grep "$name")"
echo "linked after it:        $(nm -D early.so | grep "$name")"
nm -D --defined-only torch/lib/libc10.so | grep -q "$name"
! nm -D late.so | grep -q "$name@"
nm -D early.so | grep -q "$name@GLIBCXX"
