// Package volume owns what a pod sees of files and variables that do not come from its images: the volumes below
// RootDir/pods/<uid>/volumes, the mounts a container gets of them, and the container's environment.
//
//	             SetUp, ContainerMounts, Env, TearDown
//	node agent ─────────────────────────────────────────▶ Manager ──▶ pods/<uid>/volumes/kubernetes.io~KIND/NAME
//	                                                       ▲   │       pods/<uid>/volume-subpaths/NAME/CONTAINER/N
//	API server ── one watch for each ConfigMap and Secret ─┘   │
//	API server ◀────────── reads, TokenRequest ────────────────┘
//
// Volumes whose content comes from the API (configMap, secret, projected, downwardAPI) are written so that a reader
// sees either all of the old content or all of the new; all but configMap live in memory. Watches are counted by the
// pods that use the object and end with the last.
//
// Goroutines: Run holds one for each watched object and a few that bring pods up to date; it joins them all. Locks:
// podState.mu is held while the files of one pod change, network reads included; Manager.mu and objects.mu guard maps,
// are never held across I/O, and are taken after podState.mu, never both at once.
//
// A claim's volume is mounted by its CSI driver (node/csi), or is a path of this host. Only a local volume that is a block
// device, or that has mount options, is mounted here.
//
// A container may write into its volumes while they are being mounted for another container, so every path below a volume is
// resolved by the kernel with openat2(2) RESOLVE_BENEATH, and removal neither follows symlinks nor crosses mounts.
package volume
