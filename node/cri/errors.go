package cri

import (
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
)

// NotFound reports whether the runtime answered that it has no such sandbox, container or image.
func NotFound(err error) bool { return grpcstatus.Code(err) == codes.NotFound }

// Message returns the text of an error without the words that gRPC adds.
func Message(err error) string {
	if s, ok := grpcstatus.FromError(err); ok {
		return s.Message()
	}
	return err.Error()
}
