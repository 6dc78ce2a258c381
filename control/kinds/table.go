package kinds

// table returns the rows of all stored kinds. Strategies that need more than the object take it from the Set.
func (s *Set) table() []Row {
	var rows []Row
	for _, part := range [][]Row{
		coreRows(), appsRows(), batchRows(), policyRows(), rbacRows(), networkRows(), storageRows(),
		clusterRows(), aggregationRows(), s.admissionRows(), s.deviceRows(),
	} {
		rows = append(rows, part...)
	}
	for i := range rows {
		if len(rows[i].Versions) == 0 {
			rows[i].Versions = []string{"v1"}
		}
	}
	return rows
}
