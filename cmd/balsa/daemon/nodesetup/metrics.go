package nodesetup

import (
	"log/slog"

	"github.com/balsahq/balsa/cmd/balsa/daemon/config"
	"github.com/balsahq/balsa/node/resourcemetrics"
)

// NewMetrics is what reports to servers how much a node and its pods use.
func NewMetrics(c *config.Node, log *slog.Logger) (*resourcemetrics.Reporter, error) {
	return resourcemetrics.New(resourcemetrics.Config{NodeName: c.NodeName, Interval: c.MetricResolution, Logger: log})
}
