// The version of these headers; CMakeLists.txt reads it from here. CHANGELOG.md says what a change of it may
// break.
#pragma once

#define TILEGRAD_VERSION_MAJOR 0
#define TILEGRAD_VERSION_MINOR 1
#define TILEGRAD_VERSION_PATCH 0
#define TILEGRAD_VERSION "0.1.0"
