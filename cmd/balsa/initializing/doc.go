// Package initializing holds the test of what meets in cmd/balsa alone: controllers, which make objects and count those
// they see, and an API whose objects wait for initializers before they are seen.
package initializing
