// Package serviceaccount gives every namespace its default ServiceAccount and fills the Secrets that hold a
// ServiceAccount's long-lived token.
//
// The accounts controller watches Namespaces and ServiceAccounts and creates ServiceAccounts; it never changes or deletes
// one. The tokens controller watches ServiceAccounts and Secrets of type kubernetes.io/service-account-token; it fills
// those Secrets and deletes the ones whose account is gone. It never touches a Secret of another type and never makes one:
// pods get short-lived tokens from the API. Where it is asked for, a third controller creates such a Secret for each account and
// adds its name to the account.
//
// Goroutines: one work loop each, plus the informer of token Secrets.
package serviceaccount
