// Package seeds walks through five documents about Kubernetes that Balsa grew from: each command, manifest and flag that they
// print is a row, in their order, with the number of the document and its lines. All rows that run, run on one cluster of one
// server.
//
// The documents, which are not in the repository:
//
//	0  what happens when kubectl runs a deployment (a machine translation; its code is in full-width signs)
//	1  notes on containers and Kubernetes
//	2  what happens inside Kubernetes when a deployment is created
//	3  how Kubernetes works: components, the way of a request, high availability
//	4  notes on Kubernetes' concepts
//
// A row runs what the document prints. Where that cannot work as printed, the row says why and runs what was meant: three
// dots are filled in, names in brackets are replaced, indentation that hides a field is mended, after the row has shown that
// the cluster refuses it as printed. Images that documents name (nginx, busybox, debian) are made from the image inside the
// binary and pulled from a registry on the cluster's host, the mirror of docker.io.
package seeds
