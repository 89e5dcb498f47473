// The version of these headers; CMakeLists.txt reads it from here. docs/versions.md says what may break
// between versions.
#pragma once

#define TILEGRAD_VERSION_MAJOR 0
#define TILEGRAD_VERSION_MINOR 1
#define TILEGRAD_VERSION_PATCH 0
#define TILEGRAD_VERSION "0.1.0"
