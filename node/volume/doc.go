// Package volume owns what a pod sees of files and variables that do not come from its images: the volumes below
// RootDir/pods/<uid>/volumes, the mounts a container gets of them, and the container's environment.
package volume
