package cluster

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/balsahq/balsa/control/cluster/clusterpb"
	"github.com/balsahq/balsa/control/cluster/eventlog"
)

// Events implements clusterpb.ClusterServer.
func (s *Service) Events(req *clusterpb.EventsRequest, stream clusterpb.Cluster_EventsServer) error {
	ctx := stream.Context()
	if _, err := s.authorize(ctx, members); err != nil {
		return err
	}
	if !s.events.AddReader() {
		return status.Errorf(codes.ResourceExhausted, "%d clients read events here already: ask another server", eventlog.MaxReaders)
	}
	defer s.events.RemoveReader()
	seq, gap := req.After, false
	if req.Stream != s.events.Stream {
		seq, gap = s.events.Oldest(), req.Stream != ""
	}
	for first := true; ; first = false {
		events, lost, more := s.events.After(seq)
		if lost && !first {
			return status.Error(codes.OutOfRange, "this stream was read too slowly; events were lost: look at Members and begin again")
		}
		if lost || gap {
			gap = false
			if err := stream.Send(&clusterpb.Event{Stream: s.events.Stream, Type: clusterpb.EventType_EVENT_GAP, Time: s.cfg.Now().UnixMilli(), Text: "events were lost"}); err != nil {
				return err
			}
		}
		for _, e := range events {
			if err := stream.Send(e); err != nil {
				return err
			}
			seq = e.Sequence
		}
		select {
		case <-ctx.Done():
			return nil
		case <-more:
		}
	}
}
