"""Random torch networks over all that tvdnn supports, compared with torch in float64."""
