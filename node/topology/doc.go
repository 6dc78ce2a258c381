// Package topology decides from which NUMA nodes of the machine a container gets its devices, CPUs and memory, so that they
// are near each other. It is pure.
//
// Each provider (devices, CPUs, memory) says as Hints from which sets of NUMA nodes it could serve a request, and which of
// them it prefers. Merge intersects one hint of each list and chooses the best intersection; the Policy decides whether a
// pod without a good one is refused. Policies, order and results are those of upstream's topology manager.
package topology
