package overlay

import _ "github.com/balsahq/balsa/node"
