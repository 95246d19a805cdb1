#!/bin/sh
# Installs the library of a kind, its headers and what pkg-config and CMake read, or removes them: install.sh install|uninstall KIND
#
# Environment: PREFIX, LIBDIR, INCLUDEDIR and DESTDIR, of which those that are relative begin at FROM; VERSION and SONAME. Paths in
# the written files are relative to these where they lie below PREFIX, so that the whole prefix may be moved.
set -eu

absolute() { case $1 in /*) printf %s "$1" ;; *) printf %s "$FROM/$1" ;; esac; }
# The path with a backslash before each character of the bracket expression $2, as the written file needs it.
escaped() { printf %s "$1" | sed "s/$2/\\\\&/g"; }
# What lies below the prefix, from the variable $2 on; other paths as they are.
below() { case $1 in "$prefix"/*) printf %s "\${$2}/$(escaped "${1#"$prefix"/}" "$3")" ;; *) escaped "$1" "$3" ;; esac; }

prefix=$(absolute "${PREFIX%/}") lib=$(absolute "${LIBDIR%/}") include=$(absolute "${INCLUDEDIR%/}")
stage=${DESTDIR:+$(absolute "${DESTDIR%/}")}
# The way from LIBDIR back to the prefix: a step for each folder between them.
case $lib in
"$prefix"/*) back=$(printf %s "/${lib#"$prefix"/}" | sed -E 's|/+[^/]+|/..|g') ;;
*) back= ;;
esac

# fill FILE ROOT VARIABLE SPECIAL: the file with its placeholders replaced. ROOT is the way to LIBDIR as the file itself knows it,
# VARIABLE the prefix's name there.
fill() {
    root=$(escaped "$prefix" "$4")
    [ -z "$back" ] || root=$2$back
    for pair in "PREFIX=$root" "LIBDIR=$(below "$lib" "$3" "$4")" "INCLUDEDIR=$(below "$include" "$3" "$4")" \
        "VERSION=$VERSION" "SONAME=$SONAME"; do
        printf 's|@%s@|%s|\n' "${pair%%=*}" "$(escaped "${pair#*=}" '[|&\]')"
    done | sed -f /dev/stdin "install/$1"
}

library=libtorchlean_cuda.so cmake=$lib/cmake/torchlean_cuda
case $1 in
install)
    mkdir -p "$stage$lib/pkgconfig" "$stage$cmake" "$stage$include"
    install -m 755 "build/$2/$library" "$stage$lib/$library.$VERSION"
    ln -sf "$library.$VERSION" "$stage$lib/$SONAME"
    ln -sf "$SONAME" "$stage$lib/$library"
    install -m 644 include/*.h "$stage$include"
    # shellcheck disable=SC2016 # the variables are those of the files
    fill torchlean_cuda.pc '${pcfiledir}/..' prefix '[^A-Za-z0-9/._+-]' >"$stage$lib/pkgconfig/torchlean_cuda.pc"
    for file in torchlean_cudaConfig.cmake torchlean_cudaConfigVersion.cmake; do
        # shellcheck disable=SC2016
        fill "$file" '${CMAKE_CURRENT_LIST_DIR}/../..' torchlean_cuda_prefix '["\$]' >"$stage$cmake/$file"
    done
    ;;
uninstall)
    rm -f "$stage$lib/$library" "$stage$lib/$SONAME" "$stage$lib/$library.$VERSION" "$stage$lib/pkgconfig/torchlean_cuda.pc" \
        "$stage$cmake/torchlean_cudaConfig.cmake" "$stage$cmake/torchlean_cudaConfigVersion.cmake"
    for header in include/*.h; do rm -f "$stage$include/${header##*/}"; done
    rmdir "$stage$cmake" 2>/dev/null || :
    ;;
esac
