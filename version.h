// The version of the library, MAJOR.MINOR.PATCH. CMakeLists.txt reads it from here. docs/versions.md lists
// the changes that may break a program between versions.
#pragma once

// Major version number.
#define TILEGRAD_VERSION_MAJOR 0
// Minor version number.
#define TILEGRAD_VERSION_MINOR 1
// Patch version number.
#define TILEGRAD_VERSION_PATCH 0
// The version as a string.
#define TILEGRAD_VERSION "0.1.0"
