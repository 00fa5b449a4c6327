// The version of the headers, by semantic versioning. Before 1.0 a minor version may change the contract.
#pragma once

#define GRAPHCACHE_VERSION_MAJOR 0
#define GRAPHCACHE_VERSION_MINOR 1
#define GRAPHCACHE_VERSION_PATCH 0
#define GRAPHCACHE_VERSION_STRING "0.1.0"
