// Package joinlimit counts failed attempts to join by source address, so that tokens cannot be guessed. Its memory is
// bounded: when it is full, the source that failed longest ago is forgotten.
package joinlimit
