// Package certificates owns what happens to CertificateSigningRequests: it approves those of nodes that may have what they
// ask for, has approved ones signed, and removes old ones.
//
//	          create                 approve                      sign                        delete
//	client ──────────▶ request ──▶ Approver ──▶ Approved ──▶ Signer ──▶ certificate ──▶ Cleaner
//	                      │           │ SubjectAccessReview     │  ▲
//	                      │           ▼                         ▼  │ Authority: holds the key
//	                      └─▶ people: kubectl certificate    Failed, when it can never be signed
//
// The three watch CertificateSigningRequests through one informer. The Approver writes the approval of requests to
// kubernetes.io/kube-apiserver-client-kubelet, the Signer certificates and the condition Failed of the four signers
// kubernetes.io/… that upstream's controller manager has; the Cleaner deletes. Requests to other signers are never changed, only
// deleted.
//
// The decisions are in reconcile.go, functions of values. The signing key is not in this package: an Authority is a function
// value.
//
// Goroutines: the workers of one loop for each of the three; every deadline is a delayed entry of a queue. A request that
// no user may have is checked again when its age has doubled, so that many of them cost little. A request that waits for people
// costs nothing.
package certificates
